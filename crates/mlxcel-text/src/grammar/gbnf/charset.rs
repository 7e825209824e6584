//! Sets of characters as ranges.

/// Ascending ranges of code points that neither touch nor overlap. Surrogates are never in a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CharSet {
    ranges: Vec<(u32, u32)>,
}

const LAST: u32 = char::MAX as u32;
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

impl CharSet {
    pub(super) fn new(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self { ranges: merged }.without_surrogates()
    }

    pub(super) fn one(character: char) -> Self {
        Self::new(vec![(character.into(), character.into())])
    }

    pub(super) fn complement(&self) -> Self {
        let (mut ranges, mut next) = (Vec::new(), 0);
        for &(first, last) in &self.ranges {
            if first > next {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            ranges.push((next, LAST));
        }
        Self { ranges }.without_surrogates()
    }

    fn without_surrogates(&self) -> Self {
        let (low, high) = SURROGATES;
        let parts = self
            .ranges
            .iter()
            .flat_map(|&(first, last)| [(first, last.min(low - 1)), (first.max(high + 1), last.min(LAST))]);
        Self { ranges: parts.filter(|(first, last)| first <= last).collect() }
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds a set; whether that changed anything.
    pub(super) fn add(&mut self, other: &Self) -> bool {
        let all = self.ranges.iter().chain(&other.ranges).copied().collect();
        let sum = Self::new(all);
        let changed = sum != *self;
        *self = sum;
        changed
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut left, mut right) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            if a.0 <= b.1 && b.0 <= a.1 {
                return true;
            }
            if a.1 < b.1 {
                left.next()
            } else {
                right.next()
            };
        }
        false
    }
}
