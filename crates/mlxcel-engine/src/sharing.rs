//! Engines whose programs are parts of one model in several processes. How a model is cut is a pass over its graph; who the
//! members are and whether they are still there is the caller's business.

use std::net::SocketAddr;

use crate::{Engine, EngineError};

/// Who a process is in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    pub rank: usize,
    /// Where each member listens, in the order of their ranks.
    pub addresses: Vec<SocketAddr>,
}

/// An engine that adds up and joins tensors with others of its kind.
pub trait Sharing: Engine {
    /// What must be the same on all members beside the graph, in words.
    fn likeness(&self) -> String;

    /// What the first member gives to all, so that they find each other; empty where addresses suffice.
    fn invitation(&self) -> Result<Vec<u8>, EngineError> {
        Ok(vec![])
    }

    /// Joins the group, and returns when every member has.
    fn join(&self, seat: &Seat, invitation: &[u8]) -> Result<(), EngineError>;
}
