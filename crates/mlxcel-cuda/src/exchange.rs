//! What programs ask of the other members of a group, whoever carries it out.

use mlxcel_ir::DType;

use crate::driver::{Address, Handle};
use crate::error::Result;

/// One exchange between all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sum of what all send.
    Sum,
    /// What all send, in the order of their ranks.
    Join,
}

/// How a member exchanges tensors with the others.
pub(crate) trait Exchange: Send + Sync {
    /// Starts to send so many numbers of a type from the first place, and to write what comes of it to the second.
    fn start(
        &self,
        kind: Kind,
        places: (Address, Address),
        numbers: (usize, DType),
        stream: Handle,
    ) -> Result<()>;
}
