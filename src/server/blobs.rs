//! The tasks beside the files of blobs: the look for the bucket, and the deletion of what no record names.

use std::{io, sync::Arc, time::Duration};

use baton_protocol::lead::{Lead, LeadGuard};

use super::folder;
use crate::{
    blobs::{BlobFiles, BlobPlace, Bucket, Removed},
    records::BlobRecord,
    store::Store,
    time::Clock,
};

/// From the begin of a term to the first look at the objects of a cluster.
const FIRST_SWEEP_AFTER: Duration = Duration::from_secs(60 * 60);
/// The time between two looks, and the least age of an object that is deleted. No write takes so long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Logs a bucket that cannot be used. The broker serves all else without it, and blobs as soon as it can be used.
pub(super) async fn look_for_bucket(bucket: Arc<Bucket>) {
    match bucket.look().await {
        Ok(()) => tracing::info!("the bucket of blobs can be reached"),
        Err(error) => tracing::error!(%error, "failed to list the bucket of blobs: blobs may be unavailable"),
    }
}

/// Deletes the files of removed blobs and uploads. A stop leaves the rest to the next start.
pub(super) async fn delete_removed(store: Arc<dyn Store>, blobs: Arc<BlobFiles>) {
    loop {
        blobs.removed().await;
        for removed in blobs.take_removed() {
            // The blob may have been written again since then.
            let (Removed::Blob(BlobPlace { digest: name, .. }) | Removed::Upload(name)) = removed;
            let naming = blobs.naming(&name).lock_owned().await;
            let (store, blobs) = (store.clone(), blobs.clone());
            let delete = move || {
                let _naming = naming;
                if !folder::is_named(&*store, removed)? {
                    blobs.delete(removed)?;
                }
                Ok::<_, io::Error>(())
            };
            match tokio::task::spawn_blocking(delete).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(?removed, %error, "failed to delete the file of a removed blob"),
                Err(error) => tracing::error!(?removed, %error, "failed to delete the file of a removed blob"),
            }
        }
    }
}

/// Deletes the objects of a cluster that no record names, as long as this broker leads.
pub(super) async fn sweep_objects(
    store: Arc<dyn Store>,
    blobs: Arc<BlobFiles>,
    guard: LeadGuard,
    clock: Arc<dyn Clock>,
) {
    let mut wait = FIRST_SWEEP_AFTER;
    loop {
        tokio::time::sleep(wait).await;
        wait = SWEEP_INTERVAL;
        let before = clock.now().minus(SWEEP_INTERVAL);
        let (store, blobs, guard) = (store.clone(), blobs.clone(), guard.clone());
        let sweep = move || {
            let is_named = |place: &BlobPlace| BlobRecord::names(&*store, place).map_err(io::Error::other);
            blobs.sweep_objects(before, is_named, || guard.state() == Lead::Held)
        };
        match tokio::task::spawn_blocking(sweep).await {
            Ok(Ok(0)) => {}
            Ok(Ok(deleted)) => tracing::info!(deleted, "deleted objects of blobs that no record names"),
            Ok(Err(error)) => tracing::error!(%error, "failed to look at the objects of blobs"),
            Err(error) => tracing::error!(%error, "failed to look at the objects of blobs"),
        }
    }
}
