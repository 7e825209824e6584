//! Stop strings over text that arrives in portions. What might be the beginning of a stop string is held back
//! until it is decided; a client never sees part of one. It knows nothing of tokens.

use crate::error::{Error, Result};

/// What became of a portion of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopProgress {
    /// Text that can be shown.
    pub text: String,
    /// The stop string that was reached, as an index into the list given; nothing after it is shown.
    pub stopped_by: Option<usize>,
}

/// Finds the stop string that is complete first; of several that end together, the longest.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text not shown yet: always a beginning of some stop string.
    held: String,
    stopped_by: Option<usize>,
}

/// One stop string with its Knuth–Morris–Pratt failure table.
#[derive(Clone, Debug)]
struct Stop {
    pattern: Box<[u8]>,
    /// For each length, the longest shorter beginning of the pattern that the first `length` bytes end with.
    fallback: Box<[usize]>,
    /// How many bytes of the pattern the text so far ends with.
    matched: usize,
}

impl StopMatcher {
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::EmptyStop { index });
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), stopped_by: None })
    }

    /// Takes the next portion. After a stop string was reached, later portions are ignored.
    pub fn push(&mut self, text: &str) -> StopProgress {
        if self.stopped_by.is_some() {
            return StopProgress { text: String::new(), stopped_by: self.stopped_by };
        }
        let already_held = self.held.len();
        self.held.push_str(text);
        for end in already_held + 1..=self.held.len() {
            let byte = self.held.as_bytes()[end - 1];
            self.stops.iter_mut().for_each(|stop| stop.advance(byte));
            if let Some((index, len)) = self.complete() {
                self.stopped_by = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(end - len);
                return StopProgress { text, stopped_by: self.stopped_by };
            }
        }
        // A pattern and the text are both whole characters, so the match starts at a character.
        let undecided = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let shown = self.held.len() - undecided;
        StopProgress { text: self.held.drain(..shown).collect(), stopped_by: None }
    }

    /// Ends the text: gives back what was held. The matcher can then start anew.
    pub fn finish(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        self.stopped_by = None;
        std::mem::take(&mut self.held)
    }

    /// The longest pattern that is complete, and its length.
    fn complete(&self) -> Option<(usize, usize)> {
        let complete = self.stops.iter().enumerate().filter(|(_, stop)| stop.matched == stop.pattern.len());
        complete.map(|(index, stop)| (index, stop.pattern.len())).max_by_key(|&(index, len)| (len, !index))
    }
}

impl Stop {
    fn new(pattern: &str) -> Self {
        let pattern: Box<[u8]> = pattern.as_bytes().into();
        let mut fallback = vec![0; pattern.len() + 1];
        let mut matched = 0;
        for end in 1..pattern.len() {
            while matched > 0 && pattern[end] != pattern[matched] {
                matched = fallback[matched];
            }
            matched += usize::from(pattern[end] == pattern[matched]);
            fallback[end + 1] = matched;
        }
        Self { pattern, fallback: fallback.into(), matched: 0 }
    }

    fn advance(&mut self, byte: u8) {
        while self.matched > 0 && self.pattern.get(self.matched) != Some(&byte) {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.pattern[self.matched] == byte);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pushes `text` cut into portions and returns everything shown, with the stop that was reached.
    fn run(stops: &[String], text: &str, cuts: &[usize]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops).expect("no empty stop");
        let (mut shown, mut rest) = (String::new(), text);
        let mut cuts = cuts.iter();
        while !rest.is_empty() {
            let chars = cuts.next().copied().unwrap_or(usize::MAX);
            let at = rest.char_indices().nth(chars).map_or(rest.len(), |(at, _)| at);
            let (portion, tail) = rest.split_at(at);
            let progress = matcher.push(portion);
            shown += &progress.text;
            if progress.stopped_by.is_some() {
                return (shown, progress.stopped_by);
            }
            rest = tail;
        }
        (shown + &matcher.finish(), None)
    }

    /// The definition, without any cleverness: the shortest beginning of the text that contains a stop
    /// string.
    fn expected(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
            let ending: Vec<usize> =
                (0..stops.len()).filter(|&i| text[..end].ends_with(stops[i].as_str())).collect();
            if let Some(&first) = ending.iter().max_by_key(|&&i| (stops[i].len(), std::cmp::Reverse(i))) {
                return (text[..end - stops[first].len()].to_owned(), Some(first));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn a_possible_beginning_is_held_until_it_is_decided() {
        let mut matcher = StopMatcher::new(&["</s>"]).expect("not empty");
        assert_eq!(matcher.push("a<").text, "a");
        assert_eq!(matcher.push("/").text, "");
        assert_eq!(matcher.push("b").text, "</b");
        let progress = matcher.push("c</s>d");
        assert_eq!(progress, StopProgress { text: "c".to_owned(), stopped_by: Some(0) });
        assert_eq!(matcher.push("e").text, "");
    }

    #[test]
    fn a_stop_string_of_several_characters_is_found_across_portions() {
        let mut matcher = StopMatcher::new(&["終わり🛑"]).expect("not empty");
        let shown: Vec<String> =
            ["話終", "わ", "り", "🛑後"].map(|portion| matcher.push(portion).text).into();
        assert_eq!(shown, ["話", "", "", ""]);
    }

    #[test]
    fn what_is_held_at_the_end_is_given_back() {
        let mut matcher = StopMatcher::new(&["stop"]).expect("not empty");
        assert_eq!(matcher.push("non-sto").text, "non-");
        assert_eq!(matcher.finish(), "sto");
        assert_eq!(matcher.push("p").text, "p", "a finished matcher starts anew");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(matches!(StopMatcher::new(&["a", ""]), Err(Error::EmptyStop { index: 1 })));
    }

    proptest! {
        #[test]
        fn any_portions_give_what_the_whole_text_gives(
            stops in proptest::collection::vec("[ab字🛑]{1,5}", 0..4),
            text in "[ab字🛑]{0,30}",
            cuts in proptest::collection::vec(0usize..4, 0..30),
        ) {
            prop_assert_eq!(run(&stops, &text, &cuts), expected(&stops, &text));
        }

        #[test]
        fn stop_strings_that_repeat_themselves_are_found(
            stop in "[ab]{4,9}",
            before in "[ab]{0,12}",
            repeated in 1usize..9,
        ) {
            let text = before + &stop[..repeated.min(stop.len())] + &stop;
            let stops = [stop];
            prop_assert_eq!(run(&stops, &text, &[1; 40]), expected(&stops, &text));
        }
    }
}
