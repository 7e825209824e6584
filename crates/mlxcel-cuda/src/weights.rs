//! Weights on the device: the checkpoint's bytes as they are, joined along their rows.

use std::collections::HashMap;
use std::sync::Arc;

use mlxcel_engine::{EngineError, Segments};
use mlxcel_ir::{DType, Graph, Type, Value};

use crate::context::Context;
use crate::driver::{Address, Handle};
use crate::error::Result;
use crate::memory::{Block, Pinned};

/// A weight on the device: one array for each part of its format.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) parts: [Address; 3],
}

/// The weights of a program.
#[derive(Default)]
pub(crate) struct Statics {
    pub(crate) of_node: HashMap<u32, Stored>,
    pub(crate) blocks: Vec<Block>,
}

fn fixed(t: &Type) -> Option<Vec<usize>> {
    t.shape.iter().map(|d| d.as_fixed()).collect()
}

/// Nodes that lead to `ends`; what leads to a node that is `given` does not.
pub(crate) fn needed(graph: &Graph, ends: &[Value], given: impl Fn(u32) -> bool) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    ends.iter().for_each(|v| needed[v.node as usize] = true);
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if needed[i] && !given(i as u32) {
            node.inputs.iter().for_each(|v| needed[v.node as usize] = true);
        }
    }
    needed
}

/// The nodes whose pieces go to the device: those that something other than a rearrangement reads, or that are wanted.
fn read(graph: &Graph, found: &Segments, ends: &[Value]) -> Vec<bool> {
    let needed = needed(graph, ends, |_| false);
    let mut read = vec![false; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate().filter(|(i, _)| needed[*i]) {
        if !found.contains_key(&(i as u32)) {
            node.inputs.iter().for_each(|v| read[v.node as usize] = true);
        }
    }
    ends.iter().for_each(|v| read[v.node as usize] = true);
    read
}

/// Bytes that the weights of a graph take on the device.
pub(crate) fn bytes(graph: &Graph, found: &Segments, ends: &[Value]) -> u64 {
    let read = read(graph, found, ends);
    let kept = found.iter().filter(|(node, _)| read[**node as usize]);
    kept.flat_map(|(_, s)| s).map(|t| t.byte_len() as u64).sum()
}

/// Is told how many bytes of how many have come to the device.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Brings what the nodes leading to `ends` read to the device.
pub(crate) fn upload(
    ctx: &Arc<Context>,
    graph: &Graph,
    found: &Segments,
    ends: &[Value],
    progress: Option<&Progress>,
) -> std::result::Result<Statics, EngineError> {
    let read = read(graph, found, ends);
    let mut statics = Statics::default();
    let mut ferry = Ferry::new(ctx)?;
    ferry.tells = progress.map(|tell| (tell, bytes(graph, found, ends)));
    for (i, node) in graph.nodes().iter().enumerate() {
        let Some(segments) = found.get(&(i as u32)).filter(|_| read[i]) else { continue };
        let types = std::slice::from_ref(&node.types[0]);
        let shape = fixed(&node.types[0]).ok_or_else(|| crate::unsupported(&node.op, types))?;
        let mut parts = [0; 3];
        let count = segments.first().map_or(1, |s| s.parts.len());
        for (part, at) in parts.iter_mut().enumerate().take(count) {
            let total: usize = segments.iter().map(|s| s.parts[part].len()).sum();
            let block = Block::new(ctx, total as u64, "weights")?;
            let mut to = block.at;
            for segment in segments {
                ferry.send(to, &segment.parts[part])?;
                to += segment.parts[part].len() as u64;
            }
            *at = block.at;
            statics.blocks.push(block);
        }
        statics.of_node.insert(i as u32, Stored { dtype: node.types[0].dtype, shape, parts });
    }
    ferry.finish()?;
    Ok(statics)
}

/// Copies to the device through two buffers, one being filled while the other is read.
struct Ferry<'a> {
    ctx: &'a Arc<Context>,
    buffers: Vec<(Pinned, Handle)>,
    turn: usize,
    /// What is in the buffer that is being filled, and where it goes.
    filled: usize,
    pending: Vec<(Address, usize, usize)>,
    sent: u64,
    /// Who is told how far it is, and how far it goes.
    tells: Option<(&'a Progress, u64)>,
}

/// Bytes of a buffer.
const FERRY: usize = 32 << 20;

/// Below this, threads cost more than they save.
const THREADED: usize = 4 << 20;

impl<'a> Ferry<'a> {
    fn new(ctx: &'a Arc<Context>) -> Result<Self> {
        let mut ferry =
            Ferry { ctx, buffers: vec![], turn: 0, filled: 0, pending: vec![], sent: 0, tells: None };
        for _ in 0..2 {
            let buffer = Pinned::new(ctx, FERRY)?;
            let event = ctx.driver.create_event()?;
            ferry.buffers.push((buffer, event));
            ctx.driver.record_event(event, ctx.stream)?;
        }
        Ok(ferry)
    }

    fn send(&mut self, mut to: Address, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.filled == FERRY {
                self.depart()?;
            }
            let n = bytes.len().min(FERRY - self.filled);
            let (now, rest) = bytes.split_at(n);
            fill(&mut self.buffers[self.turn].0.bytes_mut()[self.filled..self.filled + n], now);
            self.pending.push((to, self.filled, n));
            self.filled += n;
            to += n as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Sends the buffer off and waits until the other one is back.
    fn depart(&mut self) -> Result<()> {
        let (driver, stream) = (&self.ctx.driver, self.ctx.stream);
        let (buffer, event) = &self.buffers[self.turn];
        for (to, from, n) in self.pending.drain(..) {
            driver.upload(to, buffer.ptr().wrapping_add(from), n as u64, stream)?;
        }
        driver.record_event(*event, stream)?;
        self.sent += self.filled as u64;
        if let Some((tell, all)) = self.tells {
            tell(self.sent, all);
        }
        self.turn = 1 - self.turn;
        self.filled = 0;
        driver.wait_event(self.buffers[self.turn].1)
    }

    fn finish(mut self) -> Result<()> {
        self.depart()?;
        self.ctx.wait()
    }
}

impl Drop for Ferry<'_> {
    fn drop(&mut self) {
        // The buffers are read until the stream has come past them.
        let _ = self.ctx.wait();
        for (_, event) in &self.buffers {
            let _ = self.ctx.driver.destroy_event(*event);
        }
    }
}

/// A copy by several threads, since one of them is slower than the bus.
fn fill(to: &mut [u8], from: &[u8]) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    if from.len() < THREADED || threads == 1 {
        to.copy_from_slice(from);
        return;
    }
    let piece = from.len().div_ceil(threads);
    std::thread::scope(|s| {
        for (to, from) in to.chunks_mut(piece).zip(from.chunks(piece)) {
            s.spawn(|| to.copy_from_slice(from));
        }
    });
}
