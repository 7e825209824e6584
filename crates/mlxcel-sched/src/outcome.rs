//! What a step's outputs mean for its requests: new tokens, ends, failures.

use std::ops::Range;

use mlxcel_engine::{HostTensor, step};

use crate::plan::{Look, Part, Step};
use crate::sampling::Row;
use crate::scheduler::Scheduler;
use crate::{Event, Failure, Finish};

/// The outputs of a step, as rows.
struct Outputs {
    drawn: Option<Vec<i64>>,
    logits: Option<HostTensor>,
}

impl Scheduler {
    /// Takes in what a step gave, in the order that its outputs are named.
    pub fn complete(&mut self, mut step: Step, outputs: Vec<HostTensor>) -> Vec<Event> {
        let outputs = match Outputs::new(&step, outputs) {
            Ok(outputs) => outputs,
            Err(what) => return self.fail_all(&step, Failure::BadOutput { what }),
        };
        self.landed();
        self.stats.tokens_computed += step.tokens() as u64;
        for snapshot in step.snapshots.drain(..) {
            self.publish_snapshot(snapshot);
        }
        let mut events = Vec::with_capacity(2 * step.parts.len());
        let (mut row, mut near) = (0, 0);
        for part in &step.parts {
            let rows = row..row + part.rows();
            row = rows.end;
            let Some(i) = self.find_near(part.turn, near) else { continue };
            near = i + 1;
            if self.conclude(i, part, (&outputs, rows), step.looks, &mut events) {
                self.running.remove(i);
                near = i;
            }
        }
        self.rest();
        events
    }

    /// One sequence's part of a step. True if the sequence has come to its end.
    fn conclude(
        &mut self,
        i: usize,
        part: &Part,
        (outputs, rows): (&Outputs, Range<usize>),
        looks: Look,
        events: &mut Vec<Event>,
    ) -> bool {
        let s = &mut self.running[i];
        let id = s.turn.id;
        let mut computed = part.start + part.count;
        if !s.is_prefilled && computed >= s.prompt_len {
            s.is_prefilled = true;
            events.push(Event::Prefilled { id, cached: s.cached.unwrap_or(0) });
        }
        if !s.is_planned {
            s.is_drawing = false;
        }
        let mut end = (!part.draws && computed == s.limit).then_some(Ok(Finish::Length));
        for (guess, row) in rows.enumerate() {
            let row = outputs.row(row, s.chooser.needs_logits(s.made()), looks.at(s.made()));
            let drawn = row.and_then(|row| s.chooser.choose(&s.tokens, s.prompt_len, row));
            let choice = match drawn {
                Ok(choice) => choice,
                Err(failure) => {
                    end = Some(Err(failure));
                    break;
                }
            };
            s.tokens.push(choice.token);
            s.chain.extend(&s.tokens);
            events.push(Event::Token { id, token: choice.token, logprobs: choice.logprobs });
            let is_full = s.tokens.len() >= s.limit;
            end = choice.finish.or(is_full.then_some(Finish::Length)).map(Ok);
            if end.is_some() || part.guesses.get(guess) != Some(&choice.token) {
                break;
            }
            self.stats.tokens_guessed_right += 1;
            computed += 1;
        }
        self.stats.tokens_guessed += part.guesses.len() as u64;
        if !part.guesses.is_empty() {
            s.scheduled = computed;
            s.drafted = s.drafted.min(computed);
        }
        if !matches!(end, Some(Err(_))) {
            self.publish(i, computed);
        }
        events.extend(end.clone().map(|end| match end {
            Ok(reason) => Event::Finished { id, reason },
            Err(error) => Event::Failed { id, error },
        }));
        end.is_some()
    }
}

impl Outputs {
    fn new(step: &Step, outputs: Vec<HostTensor>) -> Result<Self, &'static str> {
        let rows: usize = step.parts.iter().map(Part::rows).sum();
        let mut read = Outputs { drawn: None, logits: None };
        if outputs.len() != step.outputs().len() {
            return Err("there are not as many outputs as were asked for");
        }
        for (name, output) in step.outputs().iter().zip(outputs) {
            if output.shape().first() != Some(&rows) {
                return Err("an output has not one row for each token to draw");
            }
            match *name {
                step::SAMPLED => read.drawn = Some(output.to_i64()),
                _ if output.shape().len() == 2 && output.dtype() == mlxcel_engine::DType::F32 => {
                    read.logits = Some(output);
                }
                _ => return Err("the logits are not rows of f32"),
            }
        }
        Ok(read)
    }

    /// A row, with logits if they are needed to draw or to be looked at.
    fn row(&self, row: usize, needs_logits: bool, is_checked: bool) -> Result<Row, Failure> {
        let logits = self.logits.as_ref().filter(|_| needs_logits || is_checked).map(|t| {
            let width = 4 * t.shape()[1];
            let bytes = &t.bytes()[row * width..(row + 1) * width];
            bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
        });
        if logits.as_ref().is_some_and(|logits| logits.iter().any(|l| l.is_nan())) {
            return Err(Failure::NotANumber);
        }
        if needs_logits {
            return logits.map(Row::Logits).ok_or(Failure::BadOutput { what: "there are no logits" });
        }
        let drawn = self.drawn.as_ref().ok_or(Failure::BadOutput { what: "no token was drawn" })?[row];
        u32::try_from(drawn).map(Row::Drawn).map_err(|_| Failure::NotANumber)
    }
}
