//! A step as the device runs it: a row of kernels and copies with every address in place. Made from steps that name
//! roots; laying the roots out in one arena is done here, by when they are used first and last.

use mlxcel_ir::DType;

use crate::driver::{Address, Driver, Handle, Shape};
use crate::error::{CudaError, Result};
use crate::exchange::Kind;
use crate::params::Params;
use crate::view::RootId;

/// A piece of memory that steps read and write.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) kind: RootKind,
    pub(crate) bytes: u64,
    /// Nodes that have yet to read it, and outputs that it holds.
    pub(crate) uses: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootKind {
    /// Memory of the arena.
    Arena,
    /// Fed: lies in the arena for the whole step.
    Fed,
    /// Weights and constants, never written.
    Fixed(Address),
    /// A state, and whether the graph replaces it.
    State { at: Address, updated: bool },
}

/// One thing to do.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Launch {
        function: Handle,
        shape: Shape,
        params: Params,
    },
    Copy {
        to: (RootId, u64),
        from: (RootId, u64),
        bytes: u64,
    },
    /// All members of the group have this step.
    Exchange {
        kind: Kind,
        to: (RootId, u64),
        from: (RootId, u64),
        numbers: (usize, DType),
    },
    /// Goes on at the step of this number unless the byte there is set.
    Test {
        flag: (RootId, u64),
        otherwise: usize,
    },
    Jump {
        to: usize,
    },
}

impl Step {
    fn roots(&self) -> Vec<RootId> {
        match self {
            Step::Launch { params, .. } => params.patches.iter().map(|p| p.root).collect(),
            Step::Copy { to, from, .. } | Step::Exchange { to, from, .. } => vec![to.0, from.0],
            Step::Test { flag, .. } => vec![flag.0],
            Step::Jump { .. } => vec![],
        }
    }
}

/// Where each root lies, counted from the start of the arena; meaningless for roots outside of it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) offsets: Vec<u64>,
    pub(crate) bytes: u64,
}

const ALIGNMENT: u64 = 256;

/// Lays roots out so that those which are needed at once do not overlap. `kept` are needed to the end.
pub(crate) fn layout(roots: &[Root], steps: &[Step], kept: &[RootId]) -> Layout {
    let lives = lives(roots, steps, kept);
    let mut layout = Layout { offsets: vec![0; roots.len()], bytes: 0 };
    let mut room = Room::default();
    let arena = |r: &RootId| matches!(roots[*r].kind, RootKind::Arena | RootKind::Fed);
    let mut starts: Vec<Vec<RootId>> = vec![vec![]; steps.len() + 1];
    let mut ends: Vec<Vec<RootId>> = vec![vec![]; steps.len() + 1];
    for root in (0..roots.len()).filter(arena) {
        let Some((first, last)) = lives[root] else { continue };
        starts[first].push(root);
        ends[last].push(root);
    }
    for step in 0..=steps.len() {
        for &root in &starts[step] {
            layout.offsets[root] = room.take(roots[root].bytes.max(1).next_multiple_of(ALIGNMENT));
        }
        for &root in &ends[step] {
            room.give(layout.offsets[root], roots[root].bytes.max(1).next_multiple_of(ALIGNMENT));
        }
    }
    layout.bytes = room.end;
    layout
}

/// The first and last step that touches each root.
fn lives(roots: &[Root], steps: &[Step], kept: &[RootId]) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; roots.len()];
    for (i, step) in steps.iter().enumerate() {
        for root in step.roots() {
            let life = lives[root].get_or_insert((i, i));
            life.1 = i;
        }
    }
    // What a loop reads from outside must outlast its last round.
    for (end, step) in steps.iter().enumerate() {
        let Step::Jump { to: begin } = *step else { continue };
        for life in lives.iter_mut().flatten() {
            if life.0 < begin && life.1 >= begin {
                life.1 = life.1.max(end);
            }
        }
    }
    for (root, life) in lives.iter_mut().enumerate() {
        if roots[root].kind == RootKind::Fed {
            *life = Some((0, steps.len()));
        }
    }
    for &root in kept {
        let life = lives[root].get_or_insert((steps.len(), steps.len()));
        life.1 = steps.len();
    }
    lives
}

/// Free ranges of the arena, by offset.
#[derive(Default)]
struct Room {
    free: Vec<(u64, u64)>,
    end: u64,
}

impl Room {
    /// The smallest range that is large enough, or the end.
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = (0..self.free.len()).filter(|&i| self.free[i].1 >= bytes);
        if let Some(best) = fits.min_by_key(|&i| self.free[i].1) {
            let (at, length) = self.free[best];
            if length == bytes {
                self.free.remove(best);
            } else {
                self.free[best] = (at + bytes, length - bytes);
            }
            return at;
        }
        // A range at the end grows.
        let at = match self.free.last().copied() {
            Some((at, length)) if at + length == self.end => {
                self.free.pop();
                at
            }
            _ => self.end,
        };
        self.end = at + bytes;
        at
    }

    fn give(&mut self, at: u64, bytes: u64) {
        let place = self.free.partition_point(|r| r.0 < at);
        self.free.insert(place, (at, bytes));
        let mut i = place.saturating_sub(1);
        while i + 1 < self.free.len() {
            if self.free[i].0 + self.free[i].1 == self.free[i + 1].0 {
                self.free[i].1 += self.free[i + 1].1;
                self.free.remove(i + 1);
            } else if i > place {
                break;
            } else {
                i += 1;
            }
        }
    }
}

/// Steps with addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tape {
    pub(crate) steps: Vec<Ready>,
    /// Whether the host has to look at results on the way.
    pub(crate) branches: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Ready {
    Launch { function: Handle, shape: Shape, params: Params },
    Copy { to: Address, from: Address, bytes: u64 },
    Exchange { kind: Kind, to: Address, from: Address, numbers: (usize, DType) },
    Test { flag: Address, otherwise: usize },
    Jump { to: usize },
}

/// Puts addresses in place: those of the arena begin at `arena`.
pub(crate) fn resolve(
    driver: &dyn Driver,
    roots: &[Root],
    steps: Vec<Step>,
    (layout, arena): (&Layout, Address),
) -> Result<Tape> {
    let address = |(root, offset): (RootId, u64)| {
        address(&roots[root], layout.offsets[root], arena).wrapping_add(offset)
    };
    let mut tape = Tape::default();
    for step in steps {
        tape.steps.push(match step {
            Step::Launch { function, shape, mut params } => {
                for patch in std::mem::take(&mut params.patches) {
                    let at = address((patch.root, patch.offset));
                    let words = match patch.tiles {
                        Some(tiles) => driver.describe(at, &tiles)?.to_vec(),
                        None => vec![at],
                    };
                    for (place, word) in params.bytes[patch.at..].chunks_exact_mut(8).zip(words) {
                        place.copy_from_slice(&word.to_le_bytes());
                    }
                }
                Ready::Launch { function, shape, params }
            }
            Step::Copy { to, from, bytes } => Ready::Copy { to: address(to), from: address(from), bytes },
            Step::Exchange { kind, to, from, numbers } => {
                Ready::Exchange { kind, to: address(to), from: address(from), numbers }
            }
            Step::Test { flag, otherwise } => {
                tape.branches = true;
                Ready::Test { flag: address(flag), otherwise }
            }
            Step::Jump { to } => Ready::Jump { to },
        });
    }
    Ok(tape)
}

/// The address of a root.
pub(crate) fn address(root: &Root, offset: u64, arena: Address) -> Address {
    match root.kind {
        RootKind::Arena | RootKind::Fed => arena + offset,
        RootKind::Fixed(at) | RootKind::State { at, .. } => at,
    }
}

impl Tape {
    /// Starts every step on the stream; waits only where the host decides.
    pub(crate) fn run(&self, ctx: &crate::context::Context) -> Result<()> {
        let (driver, stream) = (&*ctx.driver, ctx.stream);
        let mut next = 0;
        while let Some(step) = self.steps.get(next) {
            next += 1;
            match step {
                Ready::Launch { function, shape, params } => {
                    let ranges: &[(usize, usize)] = &params.scalars;
                    if ranges.is_empty() {
                        driver.launch(*function, *shape, &[&params.bytes], stream)?;
                    } else {
                        let parts: Vec<&[u8]> = ranges.iter().map(|&(a, b)| &params.bytes[a..b]).collect();
                        driver.launch(*function, *shape, &parts, stream)?;
                    }
                }
                Ready::Copy { to, from, bytes } => driver.copy(*to, *from, *bytes, stream)?,
                Ready::Exchange { kind, to, from, numbers } => {
                    let exchange = ctx.exchange.get().ok_or(CudaError::NoGroup)?;
                    exchange.start(*kind, (*from, *to), *numbers, stream)?;
                }
                Ready::Test { flag, otherwise } => {
                    let mut byte = [0u8];
                    driver.download(byte.as_mut_ptr(), *flag, 1, stream)?;
                    driver.wait_stream(stream)?;
                    if byte[0] == 0 {
                        next = *otherwise;
                    }
                }
                Ready::Jump { to } => next = *to,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(kind: RootKind, bytes: u64) -> Root {
        Root { kind, bytes, uses: 0 }
    }

    fn copy(to: RootId, from: RootId) -> Step {
        Step::Copy { to: (to, 0), from: (from, 0), bytes: 1 }
    }

    #[test]
    fn roots_share_memory_only_if_they_are_never_needed_at_once() {
        let roots = [
            root(RootKind::Fed, 100),
            root(RootKind::Arena, 1000),
            root(RootKind::Arena, 1000),
            root(RootKind::Arena, 1000),
        ];
        let steps = [copy(1, 0), copy(2, 1), copy(3, 2)];
        let layout = layout(&roots, &steps, &[3]);
        assert_eq!(layout.offsets[1], layout.offsets[3]);
        assert_ne!(layout.offsets[1], layout.offsets[2]);
        assert_eq!(layout.bytes, 256 + 2 * 1024);
    }

    #[test]
    fn what_a_loop_reads_from_outside_outlasts_it() {
        let roots = vec![root(RootKind::Arena, 256); 4];
        let flag = Step::Test { flag: (1, 0), otherwise: 6 };
        let steps = [copy(0, 0), copy(1, 0), flag, copy(2, 0), copy(3, 2), Step::Jump { to: 1 }];
        let layout = layout(&roots, &steps, &[]);
        let others = [layout.offsets[2], layout.offsets[3]];
        assert!(!others.contains(&layout.offsets[0]), "{layout:?}");
    }

    #[test]
    fn given_room_joins_its_neighbours() {
        let mut room = Room::default();
        let places: Vec<u64> = (0..4).map(|_| room.take(256)).collect();
        for i in [0, 2, 1, 3] {
            room.give(places[i], 256);
        }
        assert_eq!(room.free, [(0, 1024)]);
        assert_eq!(room.take(2048), 0);
        assert_eq!(room.end, 2048);
    }
}
