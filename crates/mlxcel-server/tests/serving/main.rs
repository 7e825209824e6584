//! The server from outside: real sockets, and behind them the real scheduler on an engine that follows a script.
//! No test looks at a clock but to give up.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod anthropic;
mod bad_fields;
mod bad_http;
mod chat;
mod client;
mod completions;
mod contract;
mod engine;
mod faults;
mod front;
mod fuzzing;
mod golden;
mod gone;
mod hostile_grammars;
mod house;
mod life;
mod llama;
mod page;
mod pool;
mod prefix;
mod responses;
mod sdk;
mod tools;
mod traces;
