//! What a token of a step is to its sequence: the last one that is known, from which the next is drawn, or one that
//! others follow. It depends on the sequence alone, not on what else is in the step or how a prompt was cut, so an
//! arithmetic that is chosen by it is the same in any company.

use mlxcel_engine::Feeds;

/// The symbol of the axis that holds the tokens of a step.
pub(crate) const TOKENS: &str = "tokens";

/// Which tokens of a step are the last known of their sequence.
#[derive(Debug)]
pub(crate) struct Roles(Vec<bool>);

impl Roles {
    /// `None` where feeds say nothing of sequences, or all tokens are the last.
    pub(crate) fn of(feeds: &Feeds) -> Option<Self> {
        let (positions, known) = (feeds.get("positions")?.to_i64(), feeds.get("known_lens")?.to_i64());
        let ends: Vec<bool> =
            positions.iter().zip(&known).map(|(position, known)| position + 1 >= *known).collect();
        (ends.len() == known.len() && !ends.iter().all(|&end| end)).then_some(Roles(ends))
    }

    pub(crate) fn is_end(&self, token: usize) -> bool {
        self.0[token]
    }
}
