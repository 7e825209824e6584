//! Finding a sequence a place: blocks and a slot, with what of its beginning is already computed.

use mlxcel_engine::SequenceState;

use crate::plan::{Plan, Snapshot};
use crate::pool::Entry;
use crate::scheduler::Scheduler;
use crate::sequence::{Place, Sequence};

/// The beginning of a sequence that was computed before.
#[derive(Default)]
struct Found {
    blocks: Vec<Entry>,
    snapshot: Option<Entry>,
    tokens: usize,
}

impl Scheduler {
    /// Gives a sequence blocks for all of its tokens, or nothing if there are not enough.
    pub(crate) fn settle(&mut self, s: &mut Sequence, plan: &mut Plan) -> bool {
        let found = self.look_up(s);
        // The last token is computed in any case, since the answer begins with its outputs. If its block was found,
        // it is written to, and so is a copy of it.
        let is_copied = found.tokens < found.blocks.len() * self.limits.block_size;
        let needed = self.blocks_for(s.tokens.len()) - found.blocks.len() + usize::from(is_copied);
        // Those who run will need blocks too.
        if self.blocks.available() < needed + self.running.len() * self.blocks_for(1) {
            return false;
        }
        let slot = if self.traits.is_recurrent { self.slots.take() } else { None };
        if self.traits.is_recurrent && slot.is_none() {
            return false;
        }
        self.stats.tokens_looked_up += s.tokens.len() as u64;
        self.stats.tokens_cached += found.tokens as u64;
        s.cached.get_or_insert(found.tokens);
        (s.scheduled, s.drafted) = (found.tokens, found.tokens);
        s.place = Some(self.furnish(s, found, slot, plan));
        if is_copied {
            self.copy_last(s, plan);
        }
        while s.place.as_ref().is_some_and(|place| place.blocks.len() < self.blocks_for(s.tokens.len())) {
            s.add_block(self.blocks.take().expect("the blocks were counted"));
        }
        true
    }

    fn furnish(&self, s: &Sequence, found: Found, slot: Option<Entry>, plan: &mut Plan) -> Place {
        let index = slot.as_ref().map_or(0, Entry::index);
        if let Some(snapshot) = &found.snapshot {
            plan.copies.slots.push((snapshot.index(), index));
        }
        let blocks = found.blocks.iter().map(Entry::index).collect();
        let state = SequenceState { blocks, slot: index, known_len: self.known_from_start(s) };
        let published = found.tokens / self.limits.block_size;
        Place { blocks: found.blocks, slot, state, published, shared: published }
    }

    /// Replaces the last block by a copy of one's own.
    fn copy_last(&mut self, s: &mut Sequence, plan: &mut Plan) {
        let copy = self.blocks.take().expect("the blocks were counted");
        let place = s.place.as_mut().expect("the sequence has its place");
        let (Some(shared), Some(_)) = (place.blocks.pop(), place.state.blocks.pop()) else { return };
        plan.copies.blocks.push((shared.index(), copy.index()));
        s.add_block(copy);
    }

    /// What the cache holds as if it had been computed for this sequence.
    fn look_up(&self, s: &Sequence) -> Found {
        if self.traits.lengths_matter_past.is_some_and(|n| self.known_from_start(s) > n) {
            return Found::default();
        }
        let (size, len) = (self.limits.block_size, s.tokens.len());
        let block = |i: usize| self.blocks.find(s.chain.get(i)?, &s.tokens[i * size..(i + 1) * size]);
        let mut blocks: Vec<Entry> = match self.traits.keeps_cache {
            true => (0..self.blocks_alike(s)).map_while(block).collect(),
            false => vec![],
        };
        // Where there is no block for a copy of the last one, that one is computed again.
        if blocks.len() * size == len && self.blocks.available() == 0 {
            blocks.pop();
        }
        if !self.traits.is_recurrent {
            let tokens = (blocks.len() * size).min(len - 1);
            return Found { blocks, snapshot: None, tokens };
        }
        let longest = if self.traits.keeps_cache { blocks.len() } else { self.blocks_alike(s) };
        for count in (1..=longest.min((len - 1) / size)).rev() {
            let key = s.chain.get(count - 1).expect("the count is within the chain");
            if let Some(snapshot) = self.slots.find(key, &s.tokens[..count * size]) {
                blocks.truncate(count);
                return Found { blocks, snapshot: Some(snapshot), tokens: count * size };
            }
        }
        Found::default()
    }

    /// Whole blocks of a sequence that another may have computed as this one would. Its last token is computed in any
    /// case; before it, what the sequence drew itself, and the token that it drew from first, are not what they are
    /// inside a prompt.
    fn blocks_alike(&self, s: &Sequence) -> usize {
        let known = self.known_from_start(s);
        match self.has_rounded_prompts && s.tokens.len() > known {
            true => s.chain.len().min((known - 1) / self.limits.block_size),
            false => s.chain.len(),
        }
    }

    /// How long a sequence is said to be from its first token on. Rotations and rounding may depend on it, so it must
    /// not depend on when the sequence is computed: it is the prompt's length, unless the rotation has changed for all
    /// tokens, and then at least the length at which it did.
    fn known_from_start(&self, s: &Sequence) -> usize {
        let changed = self.traits.recompute_past.filter(|n| s.tokens.len() > *n);
        changed.map_or(s.prompt_len, |n| s.prompt_len.max(n + 1))
    }

    /// Whether the rotation of all tokens changes with the next one.
    pub(crate) fn must_begin_anew(&self, s: &Sequence) -> bool {
        let from_start = s.place.as_ref().map_or(0, |place| place.state.known_len);
        self.traits.recompute_past.is_some_and(|n| from_start <= n && s.known_len() > n)
    }

    /// Whether block `index` of a sequence, once computed, is what others would have computed.
    pub(crate) fn may_publish(&self, s: &Sequence, index: usize) -> bool {
        let from_start = s.place.as_ref().map_or(0, |place| place.state.known_len);
        let known = from_start.max((index + 1) * self.limits.block_size);
        let has_snapshots = !self.traits.is_recurrent || self.keeps_snapshots();
        let is_inside = (index + 1) * self.limits.block_size < from_start;
        has_snapshots
            && (is_inside || !self.has_rounded_prompts)
            && self.traits.lengths_matter_past.is_none_or(|n| known <= n)
    }

    /// Publishes the whole blocks among the first `computed` tokens.
    pub(crate) fn publish(&mut self, i: usize, computed: usize) {
        let size = self.limits.block_size;
        let s = &self.running[i];
        let from = s.place.as_ref().map_or(0, |place| place.published);
        for b in from..computed / size {
            if let (Some(key), Some(place)) = (s.chain.get(b), &s.place)
                && let Some(block) = place.blocks.get(b)
                && self.may_publish(s, b)
            {
                self.blocks.publish(block, *key, &s.tokens[b * size..(b + 1) * size]);
            }
        }
        if let Some(place) = &mut self.running[i].place {
            place.published = place.published.max(computed / size);
            if !self.traits.is_recurrent {
                place.shared = place.published;
            }
        }
    }

    /// Has a running sequence's recurrent state copied aside, where it stands at the end of a block.
    pub(crate) fn snapshot(&mut self, i: usize, plan: &mut Plan) {
        let s = &self.running[i];
        let at = s.scheduled;
        if !self.keeps_snapshots() || at == 0 || !at.is_multiple_of(self.limits.block_size) {
            return;
        }
        let index = at / self.limits.block_size - 1;
        let (Some(&key), Some(place)) = (s.chain.get(index), &s.place) else { return };
        let Some(slot) = &place.slot else { return };
        if !self.may_publish(s, index) || self.slots.knows(&key, &s.tokens[..at]) {
            return;
        }
        // While an answer grows, only the latest snapshot of it is worth its slot.
        if at > s.prompt_len
            && let Some(last) = &s.last_snapshot
        {
            self.slots.discard(last);
        }
        if let Some(copy) = self.slots.take() {
            plan.copies.slots.push((slot.index(), copy.index()));
            plan.snapshots.push(Snapshot { turn: s.turn, slot: copy, key, tokens: s.tokens[..at].into() });
            let is_answer = at > s.prompt_len;
            self.running[i].last_snapshot = is_answer.then_some(key);
        }
    }

    /// Publishes a snapshot whose step is done.
    pub(crate) fn publish_snapshot(&mut self, snapshot: Snapshot) {
        self.slots.publish(&snapshot.slot, snapshot.key, &snapshot.tokens);
        if let Some(i) = self.find(snapshot.turn)
            && let Some(place) = &mut self.running[i].place
        {
            place.shared = snapshot.tokens.len() / self.limits.block_size;
        }
    }

    fn keeps_snapshots(&self) -> bool {
        self.traits.is_recurrent && self.limits.slots > self.limits.sequences_max
    }

    /// How many of `count` tokens to compute next. A snapshot is taken between steps and at the end of a block, so
    /// steps end there; the last of them leaves a token to compute.
    pub(crate) fn chunk(&self, s: &Sequence, count: usize) -> usize {
        let size = self.limits.block_size;
        let last = (s.known_len() - 1) / size * size;
        let end = (s.scheduled + count).min(last);
        let end = if end == last { end } else { end / size * size };
        if self.keeps_snapshots() && end > s.scheduled { end - s.scheduled } else { count }
    }

    /// Guesses that may follow a sequence's next token.
    pub(crate) fn room_for_guesses(&self, i: usize, budget: usize) -> usize {
        let s = &self.running[i];
        let Some(place) = &s.place else { return 0 };
        let spare = self.blocks.available().saturating_sub(self.running.len());
        let blocks = (place.blocks.len() + spare) * self.limits.block_size;
        let mut room = budget.saturating_sub(1).min((s.limit - s.known_len()).saturating_sub(1));
        room = room.min(blocks.saturating_sub(s.scheduled + 1));
        if let Some(n) = self.traits.recompute_past.filter(|n| place.state.known_len <= *n) {
            room = room.min(n.saturating_sub(s.tokens.len()));
        }
        room
    }

    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        if self.traits.keeps_cache { tokens.div_ceil(self.limits.block_size) } else { 0 }
    }
}
