//! What is measured, one by one. How is the runner's business.

use std::fmt;

use super::Bench;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Processing a prompt.
    Prompt,
    /// Making tokens one after the other.
    Generate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub kind: Kind,
    /// Tokens of each sequence.
    pub tokens: usize,
    /// Tokens that each sequence has in the cache already.
    pub depth: usize,
    pub sequences: usize,
}

/// One step of a case: the new tokens of every sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The position of the first of them.
    pub start: usize,
    pub tokens: usize,
    /// Whether the last token's outputs are wanted.
    pub is_answered: bool,
}

/// The cases in the order of the arguments: for each depth the prompts, then what is made.
pub fn list(options: &Bench) -> Vec<Case> {
    let positive =
        |numbers: &[u32]| numbers.iter().map(|&n| n as usize).filter(|&n| n > 0).collect::<Vec<_>>();
    let (prompts, made) = (positive(&options.prompt_tokens), positive(&options.new_tokens));
    let mut cases = Vec::new();
    for depth in options.depth.iter().map(|&d| d as usize) {
        let prompt = |&tokens: &usize| Case { kind: Kind::Prompt, tokens, depth, sequences: 1 };
        cases.extend(prompts.iter().map(prompt));
        for &tokens in &made {
            let generate = |&n: &u32| Case { kind: Kind::Generate, tokens, depth, sequences: n as usize };
            cases.extend(options.sequences.iter().map(generate));
        }
    }
    cases
}

/// How many tokens each sequence must have room for, so that every case finds as many sequences as it has.
pub fn rooms(cases: &[Case]) -> Vec<usize> {
    let sequences = cases.iter().map(|case| case.sequences).max().unwrap_or(0);
    let room = |i: usize| cases.iter().filter(|case| case.sequences > i).map(Case::end).max().unwrap_or(0);
    (0..sequences).map(room).collect()
}

impl Case {
    /// Tokens of a sequence at the end.
    pub fn end(&self) -> usize {
        self.depth + self.tokens
    }

    /// New tokens of all sequences together.
    pub fn all_tokens(&self) -> usize {
        self.tokens * self.sequences
    }

    /// Prompts are computed so many tokens at a time at most.
    pub fn steps(&self, step_tokens: usize) -> Vec<Step> {
        let at_once = match self.kind {
            Kind::Prompt => step_tokens,
            Kind::Generate => 1,
        };
        let end = self.end();
        let step = |start: usize| {
            let tokens = at_once.min(end - start);
            let is_answered = self.kind == Kind::Generate || start + tokens == end;
            Step { start, tokens, is_answered }
        };
        (self.depth..end).step_by(at_once).map(step).collect()
    }
}

/// As llama-bench names them, with the number of sequences where there are several: `tg128 x16 @ d4096`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Prompt => "pp",
            Kind::Generate => "tg",
        };
        write!(f, "{kind}{}", self.tokens)?;
        if self.sequences > 1 {
            write!(f, " x{}", self.sequences)?;
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(kind: Kind, tokens: usize, depth: usize, sequences: usize) -> Case {
        Case { kind, tokens, depth, sequences }
    }

    #[test]
    fn a_prompt_is_cut_into_steps_and_only_its_last_token_is_answered() {
        let step = |start, tokens, is_answered| Step { start, tokens, is_answered };
        let steps = case(Kind::Prompt, 1100, 7, 1).steps(512);
        assert_eq!(steps, [step(7, 512, false), step(519, 512, false), step(1031, 76, true)]);
        assert_eq!(case(Kind::Generate, 2, 9, 4).steps(512), [step(9, 1, true), step(10, 1, true)]);
    }

    #[test]
    fn sequences_that_few_cases_use_get_no_more_room_than_those_need() {
        let cases =
            [case(Kind::Prompt, 100, 50, 1), case(Kind::Generate, 10, 20, 3), case(Kind::Generate, 8, 0, 2)];
        assert_eq!(rooms(&cases), [150, 30, 30]);
    }
}
