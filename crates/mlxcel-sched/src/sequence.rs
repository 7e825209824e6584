//! A request on its way: its tokens, how far they are computed, and where its state lies.

use mlxcel_engine::SequenceState;

use crate::pool::Entry;
use crate::prefix::{Chain, Key};
use crate::sampling::Chooser;
use crate::{RequestId, Speculate};

/// The order of requests: earlier is sooner. Priority moves a request forward by a bounded number of places, so
/// every request is overtaken by finitely many others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) place: i64,
    pub(crate) id: RequestId,
}

pub(crate) struct Sequence {
    pub(crate) turn: Turn,
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// The most tokens that the sequence may have.
    pub(crate) limit: usize,
    pub(crate) chain: Chain,
    pub(crate) chooser: Chooser,
    pub(crate) speculate: Speculate,
    /// Where its state lies while it runs.
    pub(crate) place: Option<Place>,
    /// Tokens that are computed, or will be once the steps planned so far are done.
    pub(crate) scheduled: usize,
    /// Whether a token is being drawn.
    pub(crate) is_drawing: bool,
    /// Whether it has a part in the step that is being planned.
    pub(crate) is_planned: bool,
    /// Tokens of the prompt that were found in the cache, once it has run.
    pub(crate) cached: Option<usize>,
    pub(crate) is_prefilled: bool,
    /// Tokens that the draft program has computed.
    pub(crate) drafted: usize,
    /// The snapshot that the next one replaces.
    pub(crate) last_snapshot: Option<Key>,
}

/// What a running sequence holds.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) blocks: Vec<Entry>,
    pub(crate) slot: Option<Entry>,
    /// The same in the engine's terms.
    pub(crate) state: SequenceState,
    /// Leading blocks that were published as far as they may be.
    pub(crate) published: usize,
    /// Leading blocks that others can begin after: those before the last snapshot where there is recurrent state.
    pub(crate) shared: usize,
}

impl Sequence {
    /// Tokens that there will be when the step in flight is done.
    pub(crate) fn known_len(&self) -> usize {
        self.tokens.len() + usize::from(self.is_drawing)
    }

    /// New tokens so far.
    pub(crate) fn made(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Tokens that are still to be computed. The last token that there is room for never is.
    pub(crate) fn remaining(&self) -> usize {
        let known = self.known_len();
        if known >= self.limit && known > self.prompt_len { 0 } else { known - self.scheduled }
    }

    /// Whether computing everything that is known leads to a new token.
    pub(crate) fn has_room(&self) -> bool {
        self.known_len() < self.limit
    }

    pub(crate) fn add_block(&mut self, block: Entry) {
        let place = self.place.as_mut().expect("only a running sequence grows");
        place.state.blocks.push(block.index());
        place.blocks.push(block);
    }

    /// Gives everything back and forgets what was computed.
    pub(crate) fn leave(&mut self) {
        self.place = None;
        self.scheduled = 0;
        self.drafted = 0;
        self.is_planned = false;
    }
}

impl Drop for Place {
    /// The last block is kept the shortest: it is of no use without those before it.
    fn drop(&mut self) {
        while self.blocks.pop().is_some() {}
    }
}
