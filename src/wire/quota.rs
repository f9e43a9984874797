//! Quotas: how much of one resource clients may hold, all together and per network.
//!
//! Owns counting, and the share of one network, so that one host cannot take everything. Must not know the resource. A
//! quota never blocks: an amount over it is refused. Refusals are counted, so that the log has one line per interval
//! instead of one per refusal.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// The capacity of one resource, and the amounts held.
#[derive(Debug)]
pub struct Quota {
    most: usize,
    most_of_one: usize,
    held: Mutex<Held>,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    by_all: usize,
    by_network: HashMap<IpAddr, usize>,
}

impl Quota {
    /// A quota of `most`, of which one network may hold `percent_of_one` percent, and at least 1. `most` 0: unbounded.
    pub fn new(most: u64, percent_of_one: u32) -> Arc<Self> {
        let most = match usize::try_from(most) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(most) => most,
        };
        // In 128 bits, because a `usize::MAX` of an unbounded quota would overflow.
        let part = most as u128 * u128::from(percent_of_one.min(100)) / 100;
        let most_of_one = usize::try_from(part).unwrap_or(most).max(1);
        Arc::new(Self { most, most_of_one, held: Mutex::default(), refused: AtomicU64::new(0) })
    }

    /// Takes an amount for a client. `None`: over the quota.
    pub fn take(self: &Arc<Self>, client: IpAddr, amount: usize) -> Option<Holding> {
        let holding = self.nothing(client);
        // A refused holding has the amount 0, so dropping it returns nothing.
        holding.grow(amount).then_some(holding)
    }

    /// A holding of 0 for a client, to be grown.
    pub fn nothing(self: &Arc<Self>, client: IpAddr) -> Holding {
        Holding { quota: self.clone(), network: network_of(client), amount: AtomicUsize::new(0) }
    }

    /// The number of refusals since the last call; resets it.
    pub fn refusals(&self) -> u64 {
        self.refused.swap(0, Ordering::Relaxed)
    }

    fn add(&self, network: IpAddr, amount: usize) -> bool {
        let mut held = self.held.lock().expect("no holder panics");
        let of_network = held.by_network.get(&network).copied().unwrap_or_default();
        let fits = |before: usize, most: usize| before.checked_add(amount).is_some_and(|after| after <= most);
        if !fits(held.by_all, self.most) || !fits(of_network, self.most_of_one) {
            // The counter needs no lock.
            drop(held);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        held.by_all += amount;
        held.by_network.insert(network, of_network + amount);
        true
    }

    fn give_back(&self, network: IpAddr, amount: usize) {
        let mut held = self.held.lock().expect("no holder panics");
        held.by_all -= amount;
        let of_network = held.by_network.get_mut(&network).expect("a network that releases holds something");
        *of_network -= amount;
        // Removes empty entries, so that the map is bounded by the networks with a holding.
        if *of_network == 0 {
            held.by_network.remove(&network);
        }
    }
}

/// The amount held for one client; returned on drop.
#[derive(Debug)]
pub struct Holding {
    quota: Arc<Quota>,
    network: IpAddr,
    amount: AtomicUsize,
}

impl Holding {
    /// The network that holds it.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Adds to the holding. Returns `false`, and adds nothing, if the quota has no room for it.
    pub fn grow(&self, amount: usize) -> bool {
        if amount == 0 {
            return true;
        }
        // The quota counts first: a holding never claims more than the quota has granted.
        let fits = self.quota.add(self.network, amount);
        if fits {
            self.amount.fetch_add(amount, Ordering::Relaxed);
        }
        fits
    }

    /// Returns the whole amount.
    pub fn clear(&self) {
        match self.amount.swap(0, Ordering::Relaxed) {
            // The swap gives each amount back once, also if two references clear at the same time.
            0 => {}
            amount => self.quota.give_back(self.network, amount),
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The network of an address: an IPv4 address itself, or a /64 of IPv6, which one customer usually has.
fn network_of(client: IpAddr) -> IpAddr {
    // An IPv4 client is the same network whether the socket is IPv4 or IPv6.
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_network_gets_its_part_and_all_get_the_whole() {
        let quota = Quota::new(10, 50);
        let mine = quota.take(from("10.0.0.1"), 5).unwrap();
        assert!(!mine.grow(1), "half of it is taken");
        assert!(quota.take(from("::ffff:10.0.0.1"), 1).is_none(), "it is the same host");
        let another = quota.take(from("10.0.0.2"), 4).unwrap();
        assert!(quota.take(from("10.0.0.3"), 2).is_none(), "one is left");
        assert_eq!((quota.refusals(), quota.refusals()), (3, 0));
        drop(mine);
        assert!(another.grow(1));
        let third = quota.take(from("10.0.0.3"), 5).unwrap();
        drop((another, third));
        let held = quota.held.lock().unwrap();
        assert_eq!((held.by_all, held.by_network.len()), (0, 0), "nothing is left behind");
    }

    #[test]
    fn ipv6_clients_of_one_64_are_one_network() {
        let quota = Quota::new(4, 50);
        let _held = quota.take(from("2001:db8:0:1::1"), 2).unwrap();
        assert!(quota.take(from("2001:db8:0:1:ffff::2"), 1).is_none());
        assert!(quota.take(from("2001:db8:0:2::1"), 1).is_some());
    }

    #[test]
    fn zero_is_no_bound_and_everybody_gets_at_least_one() {
        let quota = Quota::new(0, 50);
        let held = quota.take(from("10.0.0.1"), 1 << 40).unwrap();
        assert!(held.grow(1 << 40));
        assert!(Quota::new(1, 1).take(from("10.0.0.1"), 1).is_some());
    }
}
