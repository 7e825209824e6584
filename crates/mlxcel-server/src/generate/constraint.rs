//! A grammar as the scheduler asks for it: masks and accepted tokens.

use mlxcel_sched::{Constraint, ConstraintError, TokenMask};
use mlxcel_text::{Error, Grammar, Matcher};

pub struct GrammarConstraint {
    matcher: Matcher,
    mask: TokenMask,
    /// Whether the mask is of the present position.
    is_current: bool,
}

impl GrammarConstraint {
    /// At the beginning of a grammar.
    pub fn boxed(grammar: &Grammar) -> Box<dyn Constraint> {
        let matcher = grammar.matcher();
        Box::new(GrammarConstraint { matcher, mask: TokenMask::default(), is_current: false })
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        if !self.is_current {
            let words = self.matcher.mask().map_err(too_complex)?;
            if self.mask.words().len() == words.len() {
                self.mask.words_mut().copy_from_slice(words);
            } else {
                self.mask = TokenMask::from_words(words.to_vec());
            }
            self.is_current = true;
        }
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.is_current = false;
        self.matcher.accept(token).map_err(too_complex)
    }

    fn is_complete(&self) -> bool {
        self.matcher.is_complete()
    }
}

fn too_complex(error: Error) -> ConstraintError {
    match error {
        Error::TokenRefused { token } => ConstraintError::NotAllowed { token },
        other => ConstraintError::TooComplex { what: other.to_string() },
    }
}
