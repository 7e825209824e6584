//! Entries of a program's state – blocks of the KV cache, slots of recurrent state – owned by handles that cannot be
//! cloned. What an entry holds may be published under a key: then it is read-only, others may share it, and when the
//! last handle goes it is kept until the room is needed, the longest unused first. It does not know what is in an
//! entry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::prefix::Key;

/// The owner of all entries. Handles return to it when they are dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    table: Arc<Mutex<Table>>,
}

/// A handle: as long as it lives, nobody takes the entry. Sharing is explicit, through [`Pool::find`].
#[derive(Debug)]
pub(crate) struct Entry {
    index: u32,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    /// Handles of each entry.
    handles: Vec<u32>,
    /// What each entry was published as.
    published: Vec<Option<Published>>,
    /// Entries that hold nothing.
    free: Vec<u32>,
    /// Published entries without a handle, by the time they lost the last one.
    idle: BTreeMap<u64, u32>,
    known: HashMap<Key, u32>,
    /// Counts returns, so that idle entries have an order.
    returns: u64,
}

#[derive(Debug)]
struct Published {
    key: Key,
    /// Compared as well as the key, so that no answer rests on a hash alone.
    tokens: Box<[u32]>,
    idle_since: u64,
}

impl Pool {
    pub(crate) fn new(entries: usize) -> Self {
        let table = Table {
            handles: vec![0; entries],
            published: (0..entries).map(|_| None).collect(),
            free: (0..entries as u32).rev().collect(),
            ..Table::default()
        };
        Pool { table: Arc::new(Mutex::new(table)) }
    }

    /// Entries that [`take`](Self::take) can give.
    pub(crate) fn available(&self) -> usize {
        let table = lock(&self.table);
        table.free.len() + table.idle.len()
    }

    /// Entries that are kept without a handle.
    pub(crate) fn idle(&self) -> usize {
        lock(&self.table).idle.len()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.table).handles.len()
    }

    /// An entry of one's own; what was kept in it is forgotten.
    pub(crate) fn take(&self) -> Option<Entry> {
        let mut table = lock(&self.table);
        let index = match table.free.pop() {
            Some(index) => index,
            None => {
                let (_, index) = table.idle.pop_first()?;
                table.forget(index);
                index
            }
        };
        table.handles[index as usize] = 1;
        Some(self.handle(index))
    }

    /// Shares the entry that was published under this key for these tokens.
    pub(crate) fn find(&self, key: &Key, tokens: &[u32]) -> Option<Entry> {
        let mut table = lock(&self.table);
        let index = table.index_of(key, tokens)?;
        table.handles[index as usize] += 1;
        if table.handles[index as usize] == 1 {
            let since = table.published[index as usize].as_ref()?.idle_since;
            table.idle.remove(&since);
        }
        Some(self.handle(index))
    }

    pub(crate) fn knows(&self, key: &Key, tokens: &[u32]) -> bool {
        lock(&self.table).index_of(key, tokens).is_some()
    }

    /// Makes an entry read-only and known. Where another one is known under the same key, nothing happens.
    pub(crate) fn publish(&self, entry: &Entry, key: Key, tokens: &[u32]) {
        let mut table = lock(&self.table);
        let place = entry.index as usize;
        if table.published[place].is_some() || table.known.contains_key(&key) {
            return;
        }
        table.known.insert(key, entry.index);
        table.published[place] = Some(Published { key, tokens: tokens.into(), idle_since: 0 });
    }

    /// Lets go of what is kept under a key, unless somebody holds it.
    pub(crate) fn discard(&self, key: &Key) {
        let mut table = lock(&self.table);
        let Some(&index) = table.known.get(key) else { return };
        if table.handles[index as usize] == 0 {
            let since = table.published[index as usize].as_ref().map_or(0, |p| p.idle_since);
            table.idle.remove(&since);
            table.forget(index);
            table.free.push(index);
        }
    }

    /// Whether an entry may not be written: somebody else has it, or may find it.
    pub(crate) fn is_read_only(&self, entry: &Entry) -> bool {
        let table = lock(&self.table);
        table.handles[entry.index as usize] > 1 || table.published[entry.index as usize].is_some()
    }

    /// Asserts that every entry is in exactly one state, and that `held` lists all handles.
    pub(crate) fn assert_integrity<'a>(&self, held: impl Iterator<Item = &'a Entry>) {
        let table = lock(&self.table);
        let mut handles = vec![0; table.handles.len()];
        held.for_each(|entry| handles[entry.index as usize] += 1);
        assert_eq!(table.handles, handles, "a handle was lost or counted twice");
        let mut seen = vec![0; handles.len()];
        table.free.iter().chain(table.idle.values()).for_each(|&i| seen[i as usize] += 1);
        for (i, (&seen, &handles)) in seen.iter().zip(&handles).enumerate() {
            assert_eq!(seen == 1, handles == 0, "entry {i} has {handles} handles");
            assert!(seen < 2, "entry {i} is available twice");
            assert!(handles < 2 || table.published[i].is_some(), "entry {i} is shared and can be written");
        }
        assert!(table.free.iter().all(|&i| table.published[i as usize].is_none()), "a free entry is known");
        assert!(table.idle.values().all(|&i| table.published[i as usize].is_some()), "nobody finds it");
        let published = table.published.iter().flatten().count();
        assert_eq!(published, table.known.len(), "a key leads nowhere");
    }

    fn handle(&self, index: u32) -> Entry {
        Entry { index, table: self.table.clone() }
    }
}

impl Table {
    fn index_of(&self, key: &Key, tokens: &[u32]) -> Option<u32> {
        let index = *self.known.get(key)?;
        let published = self.published[index as usize].as_ref()?;
        (*published.tokens == *tokens).then_some(index)
    }

    fn forget(&mut self, index: u32) {
        if let Some(published) = self.published[index as usize].take() {
            self.known.remove(&published.key);
        }
    }
}

impl Entry {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let table = &mut *lock(&self.table);
        let place = self.index as usize;
        table.handles[place] -= 1;
        if table.handles[place] > 0 {
            return;
        }
        table.returns += 1;
        match &mut table.published[place] {
            Some(published) => {
                published.idle_since = table.returns;
                table.idle.insert(table.returns, self.index);
            }
            None => table.free.push(self.index),
        }
    }
}

/// A table is never left half changed, so a panic elsewhere does not spoil it.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::root(n)
    }

    #[test]
    fn an_entry_returns_when_its_handle_goes() {
        let pool = Pool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(a.index() != b.index() && pool.take().is_none());
        drop(a);
        assert_eq!(pool.available(), 1);
        assert_eq!(pool.take().unwrap().index(), 0);
        drop(b);
        pool.assert_integrity([].into_iter());
    }

    #[test]
    fn what_was_published_is_found_until_its_room_is_needed() {
        let pool = Pool::new(3);
        for n in 0..3 {
            let entry = pool.take().unwrap();
            assert!(!pool.is_read_only(&entry));
            pool.publish(&entry, key(n), &[n as u32]);
            assert!(pool.is_read_only(&entry));
        }
        assert_eq!((pool.available(), pool.idle()), (3, 3));
        let shared = (pool.find(&key(0), &[0]).unwrap(), pool.find(&key(0), &[0]).unwrap());
        assert_eq!(shared.0.index(), shared.1.index());
        // The oldest goes first, but for what somebody holds.
        let taken = pool.take().unwrap();
        assert!(pool.knows(&key(0), &[0]) && !pool.knows(&key(1), &[1]) && pool.knows(&key(2), &[2]));
        pool.assert_integrity([&shared.0, &shared.1, &taken].into_iter());
        drop((shared, taken));
        pool.assert_integrity([].into_iter());
    }

    #[test]
    fn a_use_makes_an_entry_young_again() {
        let pool = Pool::new(2);
        for n in 0..2 {
            pool.publish(&pool.take().unwrap(), key(n), &[]);
        }
        drop(pool.find(&key(0), &[]));
        drop(pool.take());
        assert!(pool.knows(&key(0), &[]) && !pool.knows(&key(1), &[]));
    }

    #[test]
    fn the_same_key_for_other_tokens_is_not_found() {
        let pool = Pool::new(1);
        let entry = pool.take().unwrap();
        pool.publish(&entry, key(1), &[1, 2, 3]);
        assert!(pool.find(&key(1), &[1, 2, 4]).is_none() && pool.find(&key(1), &[1, 2, 3]).is_some());
    }

    #[test]
    fn a_second_entry_under_a_known_key_stays_private() {
        let pool = Pool::new(2);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        pool.publish(&first, key(1), &[1]);
        pool.publish(&second, key(1), &[1]);
        assert!(!pool.is_read_only(&second));
        pool.assert_integrity([&first, &second].into_iter());
        pool.discard(&key(1));
        assert!(pool.knows(&key(1), &[1]), "it is held");
        drop(first);
        pool.discard(&key(1));
        assert!(!pool.knows(&key(1), &[1]));
        pool.assert_integrity([&second].into_iter());
    }
}
