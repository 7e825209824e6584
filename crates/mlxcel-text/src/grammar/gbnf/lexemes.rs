//! Which parts of a grammar may be lexemes.
//!
//! A part without recursion is regular. Say the text so far is a whole lexeme A, and one more character would still be
//! the beginning of a lexeme B. The library goes on with B. That is wrong only if the character could also follow A. So
//! for every two lexemes the characters by which B goes on after a whole A must not meet those that follow A; else B is
//! cut into its own parts. A single character never goes on, so this ends.

use std::collections::{HashMap, HashSet};

use super::{CharSet, Gbnf, Kind, Node};

/// A lexeme larger than this is cut, for the library would build a large automaton.
const LEXEME_NODES_MAX: usize = 2000;
/// Pairs of positions looked at in all.
const WORK_MAX: usize = 5_000_000;

/// What is known of rules and nodes.
pub(super) struct Facts {
    pub(super) nullable: Vec<bool>,
    /// Of rules: neither recursive nor with tokens.
    regular: Vec<bool>,
    /// Of rules: nodes when every reference is written out.
    size: Vec<usize>,
    first: Vec<CharSet>,
    /// Of nodes.
    follow: Vec<CharSet>,
}

impl Facts {
    pub(super) fn of(grammar: &Gbnf) -> Self {
        let rules = grammar.rules.len();
        let mut facts = Self {
            nullable: vec![false; rules],
            regular: vec![false; rules],
            size: vec![usize::MAX; rules],
            first: vec![CharSet::default(); rules],
            follow: vec![CharSet::default(); grammar.nodes],
        };
        // Each pass settles at least one rule more, or nothing changes.
        while facts.pass(grammar) {}
        facts.follows(grammar);
        facts
    }

    fn pass(&mut self, grammar: &Gbnf) -> bool {
        let mut changed = false;
        for (index, body) in grammar.rules.iter().enumerate() {
            let nullable = self.is_nullable(body);
            changed |= nullable != std::mem::replace(&mut self.nullable[index], nullable);
            let regular = self.is_regular(body);
            changed |= regular != std::mem::replace(&mut self.regular[index], regular);
            let size = if regular { self.size(body) } else { usize::MAX };
            changed |= size != std::mem::replace(&mut self.size[index], size);
            let first = self.first(body);
            changed |= self.first[index].add(&first);
        }
        changed
    }

    pub(super) fn is_nullable(&self, node: &Node) -> bool {
        match &node.kind {
            Kind::Set(_) | Kind::Token(_) => false,
            Kind::Rule(rule) => self.nullable[*rule],
            Kind::Sequence(parts) => parts.iter().all(|part| self.is_nullable(part)),
            Kind::Choice(parts) => parts.iter().any(|part| self.is_nullable(part)),
            Kind::Repeat(part, count) => count.min == 0 || self.is_nullable(part),
        }
    }

    fn is_regular(&self, node: &Node) -> bool {
        match &node.kind {
            Kind::Set(_) => true,
            Kind::Token(_) => false,
            Kind::Rule(rule) => self.regular[*rule],
            Kind::Sequence(parts) | Kind::Choice(parts) => parts.iter().all(|part| self.is_regular(part)),
            Kind::Repeat(part, _) => self.is_regular(part),
        }
    }

    fn size(&self, node: &Node) -> usize {
        match &node.kind {
            Kind::Set(_) | Kind::Token(_) => 1,
            Kind::Rule(rule) => self.size[*rule],
            Kind::Sequence(parts) | Kind::Choice(parts) => {
                parts.iter().map(|part| self.size(part)).fold(1, usize::saturating_add)
            }
            Kind::Repeat(part, _) => self.size(part).saturating_add(1),
        }
    }

    /// Whether a part may be one lexeme, conflicts aside.
    pub(super) fn may_be_lexeme(&self, node: &Node) -> bool {
        let is_empty = matches!(&node.kind, Kind::Sequence(parts) if parts.is_empty());
        !is_empty && self.is_regular(node) && self.size(node) <= LEXEME_NODES_MAX
    }

    fn first(&self, node: &Node) -> CharSet {
        match &node.kind {
            Kind::Set(set) => set.clone(),
            Kind::Token(_) => CharSet::default(),
            Kind::Rule(rule) => self.first[*rule].clone(),
            Kind::Repeat(part, _) => self.first(part),
            Kind::Choice(parts) => parts.iter().fold(CharSet::default(), |mut all, part| {
                all.add(&self.first(part));
                all
            }),
            Kind::Sequence(parts) => {
                let mut all = CharSet::default();
                for part in parts {
                    all.add(&self.first(part));
                    if !self.is_nullable(part) {
                        break;
                    }
                }
                all
            }
        }
    }

    fn follows(&mut self, grammar: &Gbnf) {
        let mut of_rules = vec![CharSet::default(); grammar.rules.len()];
        loop {
            let before = of_rules.clone();
            for (index, body) in grammar.rules.iter().enumerate() {
                let after = of_rules[index].clone();
                self.follow_of(body, &after, &mut of_rules);
            }
            if before == of_rules {
                break;
            }
        }
    }

    fn follow_of(&mut self, node: &Node, after: &CharSet, of_rules: &mut [CharSet]) {
        self.follow[node.id].add(after);
        match &node.kind {
            Kind::Set(_) | Kind::Token(_) => {}
            Kind::Rule(rule) => {
                of_rules[*rule].add(after);
            }
            Kind::Choice(parts) => parts.iter().for_each(|part| self.follow_of(part, after, of_rules)),
            Kind::Repeat(part, count) => {
                let mut after = after.clone();
                if count.is_many() {
                    after.add(&self.first(part));
                }
                self.follow_of(part, &after, of_rules);
            }
            Kind::Sequence(parts) => {
                let mut after = after.clone();
                for part in parts.iter().rev() {
                    self.follow_of(part, &after, of_rules);
                    if !self.is_nullable(part) {
                        after = CharSet::default();
                    }
                    after.add(&self.first(part));
                }
            }
        }
    }
}

/// The ids of nodes that must not be lexemes although they are regular.
pub(super) fn split(grammar: &Gbnf, facts: &Facts) -> Result<HashSet<usize>, String> {
    let (mut split, mut work) = (HashSet::new(), 0);
    loop {
        let lexemes = lexemes(grammar, facts, &split);
        let automata: Vec<Automaton> = lexemes.iter().map(|node| Automaton::of(node, grammar)).collect();
        let before = split.len();
        for (a, whole) in automata.iter().enumerate() {
            for (b, longer) in automata.iter().enumerate() {
                let follow = &facts.follow[lexemes[a].id];
                if longer.can_go_on() && whole.goes_on(longer, follow, &mut work) {
                    split.insert(lexemes[b].id);
                }
                if work > WORK_MAX {
                    return Err("its rules are too alike to tell apart; write it more simply".to_owned());
                }
            }
        }
        if split.len() == before {
            return Ok(split);
        }
    }
}

/// The largest lexemes in use, over all rules that are in use.
fn lexemes<'g>(grammar: &'g Gbnf, facts: &Facts, split: &HashSet<usize>) -> Vec<&'g Node> {
    let (mut found, mut seen) = (Vec::new(), HashSet::from([0]));
    let mut open = vec![&grammar.rules[0]];
    while let Some(node) = open.pop() {
        if facts.may_be_lexeme(node) && !split.contains(&node.id) {
            found.push(node);
            continue;
        }
        match &node.kind {
            Kind::Set(_) | Kind::Token(_) => {}
            Kind::Rule(rule) => {
                if seen.insert(*rule) {
                    open.push(&grammar.rules[*rule]);
                }
            }
            Kind::Sequence(parts) | Kind::Choice(parts) => open.extend(parts),
            Kind::Repeat(part, _) => open.push(part),
        }
    }
    found
}

/// A position automaton (Glushkov's). Repetitions may go on for ever here, which can only find more conflicts.
#[derive(Default)]
struct Automaton {
    positions: Vec<CharSet>,
    next: Vec<Vec<usize>>,
    first: Vec<usize>,
    last: Vec<bool>,
}

/// The positions a part begins and ends with.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    fn of(node: &Node, grammar: &Gbnf) -> Self {
        let mut automaton = Self::default();
        let ends = automaton.add(node, grammar);
        automaton.last = vec![false; automaton.positions.len()];
        ends.last.iter().for_each(|&at| automaton.last[at] = true);
        automaton.first = ends.first;
        automaton
    }

    fn add(&mut self, node: &Node, grammar: &Gbnf) -> Ends {
        match &node.kind {
            Kind::Token(_) => Ends { first: vec![], last: vec![], nullable: false },
            Kind::Set(set) => {
                self.positions.push(set.clone());
                self.next.push(Vec::new());
                let at = self.positions.len() - 1;
                Ends { first: vec![at], last: vec![at], nullable: false }
            }
            Kind::Rule(rule) => self.add(&grammar.rules[*rule], grammar),
            Kind::Repeat(part, count) => {
                let mut ends = self.add(part, grammar);
                if count.is_many() {
                    self.link(&ends.last, &ends.first);
                }
                ends.nullable |= count.min == 0;
                ends
            }
            Kind::Choice(parts) => {
                let mut all = Ends { first: vec![], last: vec![], nullable: false };
                for part in parts {
                    let ends = self.add(part, grammar);
                    all.first.extend(ends.first);
                    all.last.extend(ends.last);
                    all.nullable |= ends.nullable;
                }
                all
            }
            Kind::Sequence(parts) => {
                let mut all = Ends { first: vec![], last: vec![], nullable: true };
                for part in parts {
                    let ends = self.add(part, grammar);
                    self.link(&all.last, &ends.first);
                    if all.nullable {
                        all.first.extend(&ends.first);
                    }
                    if !ends.nullable {
                        all.last.clear();
                    }
                    all.last.extend(ends.last);
                    all.nullable &= ends.nullable;
                }
                all
            }
        }
    }

    fn link(&mut self, from: &[usize], to: &[usize]) {
        from.iter().for_each(|&at| self.next[at].extend(to));
    }

    fn can_go_on(&self) -> bool {
        self.next.iter().any(|next| !next.is_empty())
    }

    /// Whether `other` can go on after a whole text of this one by a character in `follow`.
    fn goes_on(&self, other: &Self, follow: &CharSet, work: &mut usize) -> bool {
        let mut alike: HashMap<(usize, usize), bool> = HashMap::new();
        let mut seen = HashSet::new();
        let mut open: Vec<(usize, usize)> =
            self.first.iter().flat_map(|&a| other.first.iter().map(move |&b| (a, b))).collect();
        while let Some((a, b)) = open.pop() {
            *work += 1;
            if *work > WORK_MAX {
                return false;
            }
            let meets = *alike.entry((a, b)).or_insert_with(|| self.positions[a].meets(&other.positions[b]));
            if !meets || !seen.insert((a, b)) {
                continue;
            }
            if self.last[a] && other.next[b].iter().any(|&next| other.positions[next].meets(follow)) {
                return true;
            }
            open.extend(self.next[a].iter().flat_map(|&a| other.next[b].iter().map(move |&b| (a, b))));
        }
        false
    }
}
