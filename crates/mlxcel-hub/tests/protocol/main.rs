//! Models of the hub, against a hub on this machine that behaves or does not: no test reaches the network.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod caches;
mod choosing;
mod kept;
mod refusals;
mod server;
mod support;
mod transfers;
