//! Names for beginnings of sequences: the key of a block is a hash of the key of the block before it and of its own
//! tokens, so one key stands for everything up to its end.

use sha2::{Digest, Sha256};

/// Stands for a beginning. A cryptographic hash, so that nobody can make two that agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The empty beginning of all sequences that may share.
    pub(crate) fn root(cache_key: u64) -> Self {
        Key(Sha256::digest(cache_key.to_le_bytes()).into())
    }

    /// The beginning that is longer by these tokens.
    pub(crate) fn then(&self, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        tokens.iter().for_each(|t| hash.update(t.to_le_bytes()));
        Key(hash.finalize().into())
    }
}

/// The keys of the whole blocks of a growing sequence.
#[derive(Debug)]
pub(crate) struct Chain {
    root: Key,
    keys: Vec<Key>,
    block_size: usize,
}

impl Chain {
    pub(crate) fn new(root: Key, block_size: usize) -> Self {
        Chain { root, keys: vec![], block_size }
    }

    /// Adds the keys of blocks that have become whole.
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        let done = self.keys.len() * self.block_size;
        for block in tokens[done..].chunks_exact(self.block_size) {
            let key = self.keys.last().unwrap_or(&self.root).then(block);
            self.keys.push(key);
        }
    }

    /// The key of the beginning that ends with block `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&Key> {
        self.keys.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(cache_key: u64, tokens: &[u32]) -> Chain {
        let mut chain = Chain::new(Key::root(cache_key), 2);
        chain.extend(tokens);
        chain
    }

    #[test]
    fn a_key_stands_for_all_that_comes_before_it() {
        let a = chain(0, &[1, 2, 3, 4, 5]);
        let b = chain(0, &[1, 2, 9, 4]);
        assert_eq!((a.len(), b.len()), (2, 2));
        assert_eq!(a.get(0), b.get(0));
        assert_ne!(a.get(1), b.get(1));
        assert_ne!(chain(0, &[3, 4]).get(0), a.get(1), "the same tokens after others");
        assert_ne!(chain(1, &[1, 2]).get(0), a.get(0), "another adapter or template");
    }

    #[test]
    fn a_chain_grows_as_its_sequence_does() {
        let mut grown = chain(7, &[1]);
        (2..=5).for_each(|n| grown.extend(&(1..=n).collect::<Vec<u32>>()));
        assert_eq!(grown.keys, chain(7, &[1, 2, 3, 4, 5]).keys);
    }
}
