//! Connections to other members: what they send, that they live, and who is gone.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_engine::{EngineError, Feeds};

use super::wire::{self, Message};

/// How often a member says that it lives, and after how long a silence it counts as gone.
const BEAT: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(5);

/// How often someone who waits looks whether everybody is there.
pub const GLANCE: Duration = Duration::from_millis(50);

/// How long an error that may come from a lost member waits to learn its name.
const NAMING: Duration = Duration::from_secs(2);

/// A member that is gone or has failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("member {rank} ({address}) {reason}; the run ends, since everybody has a part of the model")]
pub struct Lost {
    pub rank: usize,
    pub address: SocketAddr,
    pub reason: String,
}

impl Lost {
    pub fn error(self) -> EngineError {
        EngineError::Device { engine: super::NAME, source: Box::new(self) }
    }
}

/// Who was lost first.
#[derive(Debug, Default)]
pub struct Health(Mutex<Option<Lost>>);

impl Health {
    pub fn lose(&self, lost: Lost) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(lost);
    }

    pub fn check(&self) -> Result<(), Lost> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    /// An engine's error, or the loss that led to it.
    pub fn explain(&self, error: EngineError) -> EngineError {
        let until = Instant::now() + NAMING;
        while Instant::now() < until {
            if let Err(lost) = self.check() {
                return lost.error();
            }
            std::thread::sleep(GLANCE);
        }
        error
    }
}

/// A connection to another member.
#[derive(Debug)]
pub struct Peer {
    pub rank: usize,
    pub address: SocketAddr,
    stream: Mutex<TcpStream>,
    inbox: Mutex<Receiver<(Message, Feeds)>>,
    health: Arc<Health>,
}

impl Peer {
    /// Begins to listen and to say that this member lives.
    pub fn new(
        (rank, address): (usize, SocketAddr),
        stream: TcpStream,
        health: Arc<Health>,
    ) -> std::io::Result<Arc<Self>> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let mut reading = stream.try_clone()?;
        let (sender, inbox) = channel();
        let peer =
            Arc::new(Peer { rank, address, stream: Mutex::new(stream), inbox: Mutex::new(inbox), health });
        let listener = peer.clone();
        std::thread::Builder::new().name(format!("from {rank}")).spawn(move || {
            loop {
                match wire::read(&mut reading) {
                    Ok((Message::Beat, _)) => {}
                    Ok((Message::Failed { reason }, _)) => {
                        return listener.lose(format!("failed: {reason}"));
                    }
                    Ok(received) => drop(sender.send(received)),
                    Err(error) => return listener.lose(describe(&error)),
                }
            }
        })?;
        let beating = peer.clone();
        std::thread::Builder::new().name(format!("to {rank}")).spawn(move || {
            while beating.send(&Message::Beat, &[]).is_ok() {
                std::thread::sleep(BEAT);
            }
        })?;
        Ok(peer)
    }

    fn lose(&self, reason: String) {
        self.health.lose(Lost { rank: self.rank, address: self.address, reason });
    }

    pub fn send(&self, message: &Message, bytes: &[&[u8]]) -> Result<(), Lost> {
        self.health.check()?;
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        wire::write(&mut *stream, message, bytes).or_else(|error| {
            self.lose(describe(&error));
            self.health.check()
        })
    }

    /// The next message that is not about living.
    pub fn receive(&self) -> Result<(Message, Feeds), Lost> {
        self.receive_before(None)
    }

    /// The same, with a patience that ends.
    pub fn receive_before(&self, end: Option<Instant>) -> Result<(Message, Feeds), Lost> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match inbox.recv_timeout(GLANCE) {
                Ok(received) => return Ok(received),
                Err(RecvTimeoutError::Timeout) => self.health.check()?,
                // The listener says why before it goes.
                Err(RecvTimeoutError::Disconnected) => {
                    self.lose("has closed its connection".to_string());
                    self.health.check()?;
                }
            }
            if end.is_some_and(|end| Instant::now() > end) {
                self.lose("does not answer".to_string());
            }
        }
    }
}

fn describe(error: &std::io::Error) -> String {
    use std::io::ErrorKind::*;
    match error.kind() {
        WouldBlock | TimedOut => format!("has not been heard of for {} seconds", SILENCE.as_secs()),
        UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted => {
            "has closed its connection".to_string()
        }
        InvalidData => format!("sent what is no message: {error}"),
        _ => format!("cannot be reached: {error}"),
    }
}
