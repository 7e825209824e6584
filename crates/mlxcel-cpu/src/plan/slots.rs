//! Assigning slots: memory whose value is dead is handed to the next value, the closest in size.

use super::lives::{Lives, RootKind};

/// What the assignment needs to know of a root: when it is made, and roughly how large it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) root: usize,
    pub(super) made_at: usize,
    pub(super) bytes: usize,
}

/// The slot of each root that needs one, and how many slots there are. `needs` is in order of `made_at`.
pub(super) fn assign(lives: &Lives, needs: &[Need]) -> (Vec<Option<usize>>, usize) {
    let mut slot_of = vec![None; lives.roots.len()];
    let mut sizes: Vec<usize> = vec![];
    let mut free: Vec<usize> = vec![];
    let mut busy: Vec<(usize, usize)> = vec![];
    for need in needs {
        debug_assert!(lives.roots[need.root].kind == RootKind::Slot, "only slots are assigned");
        // A slot is free for the nodes after the last one that reads it.
        busy.retain(|&(end, slot)| {
            let live = end >= need.made_at;
            if !live {
                free.push(slot);
            }
            live
        });
        let distance = |slot: usize| sizes[slot].max(1).ilog2().abs_diff(need.bytes.max(1).ilog2());
        let best = (0..free.len()).min_by_key(|&i| (distance(free[i]), free[i]));
        let slot = match best {
            Some(i) => free.swap_remove(i),
            None => {
                sizes.push(0);
                sizes.len() - 1
            }
        };
        sizes[slot] = sizes[slot].max(need.bytes);
        slot_of[need.root] = Some(slot);
        busy.push((lives.end(need.root), slot));
    }
    (slot_of, sizes.len())
}
