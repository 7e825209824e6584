//! The first member: an engine whose programs run on every member. It waits for the others when something is first
//! compiled, compiles its own shard while they compile theirs, and sends every step to all of them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mlxcel_engine::{
    Caps, Engine, EngineError, Feeds, HostTensor, Program, Seat, Shards, Sharing, Ticket, WeightSource,
};
use mlxcel_ir::passes::{Member, shard};
use mlxcel_ir::{Bindings, Graph, Op, Type};

use super::NAME;
use super::guarded::{Guarded, Stopped, guard};
use super::hosts::Hosts;
use super::peers::{GLANCE, Health, Lost, Peer};
use super::wire::{self, Message, VERSION};
use crate::say;

/// How long the members may take to come, and to join the exchange.
const COMING: Duration = Duration::from_secs(120);
const JOINING: Duration = Duration::from_secs(30);

/// How long a stranger at the port may take to say who it is.
const GREETING: Duration = Duration::from_secs(5);

/// The group of this process: engines come and go, their group stays.
static GROUP: Mutex<Option<Arc<Connected>>> = Mutex::new(None);

pub struct Leader {
    engine: Arc<dyn Sharing>,
    hosts: Hosts,
}

#[derive(Debug)]
struct Connected {
    peers: Vec<Arc<Peer>>,
    health: Arc<Health>,
    fingerprint: u64,
    next: AtomicU64,
}

/// Why the group did not come about.
#[derive(Debug, thiserror::Error)]
enum Unmet {
    #[error("{address} cannot be listened on: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("{missing} did not come within {} seconds; start `mlxcel worker` there with the same --hosts", COMING.as_secs())]
    Missing { missing: String },
    #[error("the model is not the one that the group has met for; start it anew")]
    OtherModel,
}

impl From<Unmet> for EngineError {
    fn from(error: Unmet) -> Self {
        EngineError::Device { engine: NAME, source: Box::new(error) }
    }
}

/// What must be the same on all members: the graph, and how its steps are cut into parts.
pub fn fingerprint(graph: &Graph, engine: &dyn Sharing) -> u64 {
    // FNV-1a.
    let text = format!("{} {} {graph}", engine.caps().name, engine.likeness());
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Leader {
    pub fn new(engine: Arc<dyn Sharing>, hosts: Hosts) -> Self {
        Leader { engine, hosts }
    }

    /// The group, which is met at the first call.
    fn connected(&self, graph: &Graph) -> Result<Arc<Connected>, EngineError> {
        let mut group = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        let fingerprint = fingerprint(graph, &*self.engine);
        match &*group {
            Some(known) if known.fingerprint == fingerprint => {
                self.engine.join(&self.seat(), &[])?;
                Ok(known.clone())
            }
            Some(_) => Err(Unmet::OtherModel.into()),
            None => {
                let met = Arc::new(self.meet(fingerprint)?);
                self.join(&met)?;
                Ok(group.insert(met).clone())
            }
        }
    }

    fn seat(&self) -> Seat {
        Seat { rank: 0, addresses: self.hosts.exchange() }
    }

    /// Waits for every other member.
    fn meet(&self, fingerprint: u64) -> Result<Connected, EngineError> {
        let address = self.hosts.meeting();
        let refused = |source| Unmet::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let health = Arc::new(Health::default());
        let mut peers: Vec<Option<Arc<Peer>>> = vec![None; self.hosts.count()];
        let until = Instant::now() + COMING;
        while peers[1..].iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => match self.greet(stream, fingerprint, &health) {
                    Ok(peer) if peers[peer.rank].is_none() => {
                        let rank = peer.rank;
                        peers[rank] = Some(peer);
                    }
                    Ok(peer) => say(&format!("note: member {} came twice", peer.rank)),
                    Err(reason) => say(&format!("note: somebody was turned away: {reason}")),
                },
                Err(_) => std::thread::sleep(GLANCE),
            }
            health.check().map_err(Lost::error)?;
            if Instant::now() > until {
                let missing = (1..peers.len()).filter(|r| peers[*r].is_none());
                let missing: Vec<String> =
                    missing.map(|r| format!("member {r} ({})", self.hosts.of(r))).collect();
                return Err(Unmet::Missing { missing: missing.join(", ") }.into());
            }
        }
        let peers = peers.into_iter().flatten().collect();
        Ok(Connected { peers, health, fingerprint, next: AtomicU64::new(0) })
    }

    /// Who somebody at the port is, if it belongs here.
    fn greet(
        &self,
        mut stream: TcpStream,
        fingerprint: u64,
        health: &Arc<Health>,
    ) -> Result<Arc<Peer>, String> {
        let text = |e: std::io::Error| e.to_string();
        stream.set_nonblocking(false).map_err(text)?;
        stream.set_read_timeout(Some(GREETING)).map_err(text)?;
        let (message, _) = wire::read(&mut stream).map_err(text)?;
        let Message::Hello { version, rank, members, fingerprint: theirs } = message else {
            return Err("it did not say who it is".to_string());
        };
        let complaint = if version != VERSION {
            Some("it runs another version of mlxcel".to_string())
        } else if members != self.hosts.count() || rank == 0 || rank >= members {
            Some(format!("it is member {rank} of {members}, and this group has {}", self.hosts.count()))
        } else if theirs != fingerprint {
            Some("it has another model, engine, --dtype, --kv-dtype, --mlx-mode or MLX".to_string())
        } else {
            None
        };
        if let Some(reason) = complaint {
            let _ = wire::write(&mut stream, &Message::Failed { reason: reason.clone() }, &[]);
            return Err(reason);
        }
        Peer::new((rank, self.hosts.of(rank)), stream, health.clone()).map_err(text)
    }

    /// Has all members join the exchange. The ring's first member listens before the last one calls it.
    fn join(&self, met: &Connected) -> Result<(), EngineError> {
        let (engine, seat) = (self.engine.clone(), self.seat());
        let invitation = engine.invitation()?;
        let message = Message::Join { invitation: invitation.clone() };
        let joined = guard(&met.health, |sender| {
            std::thread::spawn(move || drop(sender.send(engine.join(&seat, &invitation))));
            std::thread::sleep(GLANCE);
            for peer in &met.peers {
                // Who cannot be told is lost, which is seen while waiting.
                let _ = peer.send(&message, &[]);
            }
        });
        joined.map_err(|stopped| match stopped {
            Stopped::Lost(error) => error,
            Stopped::Failed(error) => met.health.explain(error),
            Stopped::Ended => EngineError::Threads { source: std::io::Error::other("joining ended") },
        })?;
        let end = Instant::now() + JOINING;
        for peer in &met.peers {
            expect(peer, &Message::Joined, Some(end))?;
        }
        Ok(())
    }
}

/// Waits for one answer.
fn expect(peer: &Peer, wanted: &Message, end: Option<Instant>) -> Result<(), EngineError> {
    let (got, _) = peer.receive_before(end).map_err(Lost::error)?;
    if got == *wanted {
        return Ok(());
    }
    let reason = format!("answered {got:?} where {wanted:?} was expected");
    Err(Lost { rank: peer.rank, address: peer.address, reason }.error())
}

impl Engine for Leader {
    fn caps(&self) -> Caps {
        let caps = self.engine.caps();
        Caps { device: format!("{}, shared by {}", caps.device, self.hosts.count()), ..caps }
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        self.engine.native(op, operands)
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        // What cannot be shared is refused before anybody is waited for.
        let sharded = shard(graph, Member { rank: 0, members: self.hosts.count() })?;
        let group = self.connected(graph)?;
        let program = group.next.fetch_add(1, Ordering::Relaxed);
        group.tell(&Message::Compile { program, dims: dims.clone() }, &[])?;
        let mine = self.engine.compile(&sharded.graph, &Shards::new(weights, &sharded.cuts), dims)?;
        for peer in &group.peers {
            expect(peer, &Message::Compiled { program }, None)?;
        }
        let inputs = sharded.graph.inputs().filter_map(|(_, n)| match &n.op {
            Op::Input { name, .. } => Some(name.clone()),
            _ => None,
        });
        let inputs = inputs.collect();
        let (rounds_prompts, draws_no_nan) = (mine.rounds_prompts(), mine.draws_no_nan());
        let guarded = Guarded::new(mine, group.health.clone())?;
        Ok(Box::new(Everywhere {
            program,
            group,
            guarded,
            inputs,
            rounds_prompts,
            draws_no_nan,
            is_lost: false,
        }))
    }
}

impl Connected {
    fn tell(&self, message: &Message, bytes: &[&[u8]]) -> Result<(), EngineError> {
        self.peers.iter().try_for_each(|peer| peer.send(message, bytes).map_err(Lost::error))
    }
}

/// A program of which every member runs a part.
struct Everywhere {
    program: u64,
    group: Arc<Connected>,
    guarded: Guarded,
    /// What the graph is fed.
    inputs: Vec<String>,
    rounds_prompts: bool,
    draws_no_nan: bool,
    is_lost: bool,
}

impl Everywhere {
    /// Whoever was not told has other states from now on.
    fn tell(&mut self, message: &Message, bytes: &[&[u8]]) -> Result<(), EngineError> {
        self.group.tell(message, bytes).inspect_err(|_| self.is_lost = true)
    }

    /// Runs `f` on this member's part, and asks it about its states if that fails.
    fn call<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut dyn Program) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let result = self.guarded.call(f);
        if result.is_err() {
            self.is_lost |= self.guarded.call(|program| Ok(program.is_lost())).unwrap_or(true);
        }
        result
    }
}

impl Program for Everywhere {
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let outputs: Vec<String> = outputs.iter().map(|o| o.to_string()).collect();
        let (tensors, bytes) = wire::tensors(feeds, &self.inputs);
        let message = Message::Step { program: self.program, outputs: outputs.clone(), tensors };
        self.tell(&message, &bytes)?;
        let feeds = feeds.clone();
        self.call(move |program| {
            let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
            program.submit(&feeds, &outputs)
        })
    }

    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        self.call(move |program| program.collect(ticket))
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        let (axis, pairs) = (axis.to_string(), pairs.to_vec());
        let message = Message::CopyState { program: self.program, axis: axis.clone(), pairs: pairs.clone() };
        self.tell(&message, &[])?;
        self.call(move |program| program.copy_state(&axis, &pairs))
    }

    fn rounds_prompts(&self) -> bool {
        self.rounds_prompts
    }

    fn draws_no_nan(&self) -> bool {
        self.draws_no_nan
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}

impl Drop for Everywhere {
    fn drop(&mut self) {
        let _ = self.group.tell(&Message::Drop { program: self.program }, &[]);
    }
}
