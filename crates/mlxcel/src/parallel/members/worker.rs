//! `mlxcel worker`: another member of a group. It loads the same model, keeps its share of it, and runs the steps that the
//! first member sends until that one has no more.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use mlxcel_engine::{EngineError, Seat, Shards, Sharing};
use mlxcel_ir::passes::{Member, Sharded, shard};

use super::guarded::{Guarded, Stopped, guard};
use super::hosts::Hosts;
use super::leader::fingerprint;
use super::peers::{Health, Peer};
use super::wire::{Message, VERSION};
use crate::parallel::Worker;
use crate::session::Loaded;
use crate::{loading, say};

/// How long the first member may take to be there, and how often it is called.
const COMING: Duration = Duration::from_secs(120);
const CALLING: Duration = Duration::from_millis(200);

pub fn run(options: &Worker) -> Result<ExitCode> {
    let arguments = &options.model.engine;
    let Some(hosts) = arguments.parallel.hosts()? else {
        bail!("a worker is one of several; give --tp and --hosts")
    };
    let rank = usize::from(options.rank);
    ensure!(
        (1..hosts.count()).contains(&rank),
        "--rank {rank} is no worker of {} members; give 1 to {}",
        hosts.count(),
        hosts.count() - 1
    );
    let engine = super::sharing(arguments)?;
    let path = options.model.fetching.resolve(&options.model.model)?;
    let loaded = loading::load_without_text(&path, options.model.types, &engine.caps())?;
    let sharded = shard(&loaded.model.graph, Member { rank, members: hosts.count() })?;
    let print = fingerprint(&loaded.model.graph, &*engine);
    let member = Joined::new(engine, &hosts, rank, print)?;
    let result = member.serve(&loaded, &sharded);
    if let Err(error) = &result {
        let _ = member.first.send(&Message::Failed { reason: error.to_string() }, &[]);
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// A worker that has met the group.
struct Joined {
    engine: Arc<dyn Sharing>,
    first: Arc<Peer>,
    health: Arc<Health>,
}

impl Joined {
    fn new(engine: Arc<dyn Sharing>, hosts: &Hosts, rank: usize, fingerprint: u64) -> Result<Self> {
        let stream = call(hosts)?;
        let health = Arc::new(Health::default());
        let mut greeting = stream.try_clone()?;
        let hello = Message::Hello { version: VERSION, rank, members: hosts.count(), fingerprint };
        super::wire::write(&mut greeting, &hello, &[])
            .map_err(|e| anyhow!("the first member ({}) does not listen: {e}", hosts.meeting()))?;
        let first = Peer::new((0, hosts.meeting()), stream, health.clone())?;
        let (message, _) = first.receive()?;
        let Message::Join { invitation } = message else {
            bail!("the first member said {message:?} where it should say join")
        };
        let seat = Seat { rank, addresses: hosts.exchange() };
        let joining = engine.clone();
        let joined = guard(&health, |sender| {
            std::thread::spawn(move || drop(sender.send(joining.join(&seat, &invitation))));
        });
        joined.map_err(|stopped| match stopped {
            Stopped::Lost(error) => anyhow!(error),
            Stopped::Failed(error) => anyhow!(error),
            Stopped::Ended => anyhow!("joining the group ended"),
        })?;
        first.send(&Message::Joined, &[])?;
        say(&format!("member {rank} of {} is ready", hosts.count()));
        Ok(Joined { engine, first, health })
    }

    /// Does what the first member says until it has gone and nothing is left to do.
    fn serve(&self, loaded: &Loaded, sharded: &Sharded) -> Result<()> {
        let weights = Shards::new(&loaded.checkpoint, &sharded.cuts);
        let mut programs: BTreeMap<u64, Guarded> = BTreeMap::new();
        loop {
            let (message, feeds) = match self.first.receive() {
                Ok(received) => received,
                Err(_) if programs.is_empty() => return Ok(()),
                Err(lost) => return Err(lost.into()),
            };
            match message {
                Message::Compile { program, dims } => {
                    let made = self.engine.compile(&sharded.graph, &weights, &dims)?;
                    programs.insert(program, Guarded::new(made, self.health.clone())?);
                    self.first.send(&Message::Compiled { program }, &[])?;
                }
                Message::Drop { program } => drop(programs.remove(&program)),
                Message::Step { program, outputs, .. } => {
                    find(&programs, program)?.call(move |p| {
                        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
                        let ticket = p.submit(&feeds, &outputs)?;
                        p.collect(ticket)
                    })?;
                }
                Message::CopyState { program, axis, pairs } => {
                    find(&programs, program)?.call(move |p| p.copy_state(&axis, &pairs))?;
                }
                other => bail!("the first member said {other:?}, which is nothing to do"),
            }
        }
    }
}

fn find(programs: &BTreeMap<u64, Guarded>, program: u64) -> Result<&Guarded, EngineError> {
    programs.get(&program).ok_or(EngineError::UnknownTicket { ticket: program })
}

/// Calls the first member until it is there.
fn call(hosts: &Hosts) -> Result<TcpStream> {
    let until = Instant::now() + COMING;
    loop {
        match TcpStream::connect_timeout(&hosts.meeting(), CALLING.max(Duration::from_secs(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > until => bail!(
                "the first member ({}) was not there within {} seconds: {error}",
                hosts.meeting(),
                COMING.as_secs()
            ),
            Err(_) => std::thread::sleep(CALLING),
        }
    }
}
