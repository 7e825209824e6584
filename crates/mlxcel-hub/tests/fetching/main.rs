//! Everything that is fetched from outside, against stand-ins on this machine: no test reaches the network.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod cache;
#[cfg(unix)]
mod clients;
#[cfg(unix)]
mod folder;
mod index;
#[cfg(unix)]
mod python;
mod support;
