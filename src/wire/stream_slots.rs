//! StreamSlots of streams: a bound for each caller, and one for all callers together.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::broker::access::Caller;

/// The bounds, and the slots that are taken.
#[derive(Debug)]
pub struct StreamSlots {
    of_one_max: usize,
    of_all_max: usize,
    /// The number of each caller's slots, by the caller's text.
    taken: Mutex<HashMap<String, usize>>,
}

/// A slot of a caller. Its drop gives the slot back.
#[derive(Debug)]
pub struct StreamSlot {
    slots: Arc<StreamSlots>,
    caller: String,
}

impl StreamSlots {
    /// Starts with all slots free.
    pub fn new(of_one_max: usize, of_all_max: usize) -> Arc<Self> {
        Arc::new(Self { of_one_max, of_all_max, taken: Mutex::default() })
    }

    /// Takes a slot for the caller. `None`: the caller or all callers together have the most.
    pub fn take(self: &Arc<Self>, caller: &Caller) -> Option<StreamSlot> {
        let caller = caller.to_string();
        let mut taken = self.taken();
        let own = taken.get(&caller).copied().unwrap_or_default();
        if own >= self.of_one_max || taken.values().sum::<usize>() >= self.of_all_max {
            return None;
        }
        taken.insert(caller.clone(), own + 1);
        Some(StreamSlot { slots: self.clone(), caller })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        match taken.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => drop(taken.remove(&self.caller)),
        }
    }
}
