//! Guesses of what comes next. A guess is never trusted: the target's own draw at each place decides, so an answer is
//! the same with any guesses, only sooner with good ones.

mod draft;

pub use draft::Draft;

/// Longer runs are not looked for.
const NGRAM_MAX: usize = 32;

/// What followed the last time that the last tokens occurred: of the longest run of at most `ngram` tokens that did.
pub(crate) fn look_up(tokens: &[u32], ngram: usize, count: usize) -> &[u32] {
    let ngram = ngram.min(NGRAM_MAX);
    let (mut longest, mut after) = (0, tokens.len());
    for end in (1..tokens.len()).rev() {
        let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(ngram);
        let common = pairs.take_while(|(a, b)| a == b).count();
        if common > longest {
            (longest, after) = (common, end);
        }
        if longest == ngram {
            break;
        }
    }
    &tokens[after..][..count.min(tokens.len() - after)]
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
        assert_eq!(look_up(&[], 3, 5), none);
        assert_eq!(look_up(&[4; 100], usize::MAX, usize::MAX), [4]);
    }
}
