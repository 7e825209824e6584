//! Guesses of what comes next. A guess is never trusted: the target's own draw at each place decides, so an answer is
//! the same with any guesses, only sooner with good ones.

mod draft;

pub use draft::Draft;

/// What followed the last time that the last tokens occurred: of the longest run of at most `ngram` tokens that did.
pub(crate) fn look_up(tokens: &[u32], ngram: usize, count: usize) -> &[u32] {
    for n in (1..=ngram.min(tokens.len().saturating_sub(1))).rev() {
        let (before, last) = (&tokens[..tokens.len() - 1], &tokens[tokens.len() - n..]);
        if let Some(at) = before.windows(n).rposition(|window| window == last) {
            let after = &tokens[at + n..];
            return &after[..count.min(after.len())];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_what_followed_the_last_time() {
        assert_eq!(look_up(&[1, 2, 3, 4, 9, 2, 3], 3, 2), [4, 9]);
        assert_eq!(look_up(&[1, 2, 3, 4, 9, 2, 3], 3, 9), [4, 9, 2, 3], "no further than what is known");
        assert_eq!(look_up(&[7, 3, 8, 5, 3, 6, 3], 2, 1), [6], "the latest occurrence");
        assert_eq!(look_up(&[2, 3, 8, 7, 3, 6, 2, 3], 2, 1), [8], "the longest run first");
        assert_eq!(look_up(&[5, 5, 5], 2, 4), [5], "an overlap with the end itself");
    }

    #[test]
    fn without_an_occurrence_there_is_no_guess() {
        let none: [u32; 0] = [];
        assert_eq!(look_up(&[1, 2, 3], 3, 5), none);
        assert_eq!(look_up(&[1], 3, 5), none);
        assert_eq!(look_up(&[1, 1, 1], 0, 5), none);
    }
}
