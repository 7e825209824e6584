//! Packed weights that are kept: what a start packs is written to a file, which the next start maps instead.
//!
//! A file has no table of what is in it: weights, their order and their sizes follow from the graph (`plan`). It begins with a
//! head (`head`) that says of what, in which state, it was made, and what its bytes hash to. A file that is not what is
//! wanted is made anew, never an error; so is one that another process makes at the same time (`place`). Panels lie where
//! large pages begin and are written so that the system has them in large ones (`fill`); where it has not, memory of our own
//! is faster and nothing is kept.
//!
//! Layout: `KEY/NAME.panels` below the root, with the key of the path of the first file that has a part in it, so that who removes a
//! model finds them, and a name of everything the contents depend on but the state of those files, so that a changed model
//! replaces its panels.

mod fill;
mod head;
mod place;
mod plan;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mlxcel_engine::EngineError;

use self::place::{Miss, Place};
use self::plan::Plan;
use crate::context::Context;
use crate::kernels::packed::Packed;
use crate::memory::{Mapped, Memory};
use crate::weight::Matrix;

/// Why packed weights are not kept, or not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptError {
    #[error("packed weights in {} are damaged ({what}) and are packed anew", path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error("packed weights are not kept: {} cannot be used: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "packed weights are not kept: they need {needed} bytes in {}, where {available} are left",
        folder.display()
    )]
    NoRoom { folder: PathBuf, needed: u64, available: u64 },
}

/// Hears why something is not kept. The engine works without, so that it is no error.
pub type Complain = fn(&KeptError);

/// Keeps packed weights below a folder.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    root: PathBuf,
    complain: Option<Complain>,
    /// Whether a file is read as fast as memory.
    suits: fn(&Mapped) -> bool,
}

impl Keeper {
    pub(crate) fn new(root: PathBuf, complain: Option<Complain>) -> Self {
        Keeper { root, complain, suits: Mapped::is_in_large_pages }
    }

    /// Packs those of the matrices at `products` that can be kept, or takes what was kept of them.
    pub(crate) fn pack(
        &self,
        ctx: &Context,
        matrices: &mut [Matrix],
        products: &[usize],
    ) -> Result<(), EngineError> {
        let Some(plan) = Plan::new(ctx.level, matrices, products) else { return Ok(()) };
        let Some(panels) = self.panels(ctx, &plan, matrices)? else { return Ok(()) };
        panels.settle();
        let panels = Arc::new(panels);
        for piece in &plan.pieces {
            let data = Memory::Mapped(panels.clone(), piece.at);
            matrices[piece.matrix].set_packed(Packed::of(piece.form, data));
        }
        Ok(())
    }

    /// `None` where memory is better.
    fn panels(&self, ctx: &Context, plan: &Plan, matrices: &[Matrix]) -> Result<Option<Mapped>, EngineError> {
        let place = Place::new(self, plan);
        match place.open(ctx, plan) {
            Ok(panels) => return Ok(Some(panels)),
            Err(Miss::SmallPages) => return Ok(None),
            Err(Miss::Absent) => {}
            Err(Miss::Damaged(what)) => self.say(&KeptError::Damaged { path: place.path(), what }),
        }
        match place.make(ctx, plan, matrices) {
            Ok(made) => {
                made.unkept.iter().for_each(|error| self.say(error));
                Ok(made.panels)
            }
            Err(fill::Failure::Engine(error)) => Err(error),
            Err(fill::Failure::Kept(error)) => {
                self.say(&error);
                Ok(None)
            }
        }
    }

    fn say(&self, error: &KeptError) {
        if let Some(complain) = self.complain {
            complain(error);
        }
    }
}

#[cfg(test)]
mod tests;
