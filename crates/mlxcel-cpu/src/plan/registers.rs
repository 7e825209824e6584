//! Assigning registers: the view of a value that nobody reads any more makes room for the next, so that a run touches
//! little memory however long the plan is.

use super::{Plan, Source};

/// Replaces the numbers of values by numbers of registers. `ends` has the last step that reads each value,
/// [`usize::MAX`] if it outlives the plan.
pub(super) fn assign(plan: &mut Plan, ends: &[usize]) {
    let mut register_of = vec![u32::MAX; ends.len()];
    let mut free: Vec<u32> = vec![];
    let mut busy: Vec<(usize, u32)> = vec![];
    for (at, step) in plan.steps.iter().enumerate() {
        busy.retain(|&(end, register)| {
            let live = end >= at;
            if !live {
                free.push(register);
            }
            live
        });
        for result in step.results.of_mut(&mut plan.placed) {
            let register = free.pop().unwrap_or_else(|| {
                plan.registers += 1;
                plan.registers as u32 - 1
            });
            let value = result.register as usize;
            register_of[value] = register;
            result.register = register;
            // A result that nobody reads is still written.
            busy.push((ends[value].max(at), register));
        }
        for input in step.inputs.of_mut(&mut plan.inputs) {
            rename(&mut input.from, &register_of);
        }
    }
    let ends = plan.results.iter_mut().chain(plan.updates.iter_mut().map(|(_, v)| v));
    ends.for_each(|v| rename(&mut v.from, &register_of));
}

fn rename(source: &mut Source, register_of: &[u32]) {
    if let Source::Register(value) = source {
        *value = register_of[*value as usize];
    }
}
