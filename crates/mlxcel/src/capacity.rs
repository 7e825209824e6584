//! How many tokens a session holds: what was asked for, within the model's context and the machine's memory. A prompt
//! that does not fit is refused, never cut.

use anyhow::{Result, bail, ensure};

use crate::report::in_words;

/// Tokens of a chat unless told otherwise. Engines take memory for them only as it is used.
pub const CHAT_TOKENS: usize = 8192;

/// What the choice depends on.
pub struct Needs {
    pub prompt: usize,
    /// New tokens; `None` for as many as there is room for.
    pub max_tokens: Option<usize>,
    /// The longest sequence that the model was made for.
    pub context: usize,
    pub bytes_per_token: u64,
    /// What the cache may take, if that is known.
    pub memory: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Capacity {
    pub tokens: usize,
    /// Whether there is less room than the model could use, for want of memory.
    pub is_cut: bool,
}

pub fn choose(needs: &Needs) -> Result<Capacity> {
    let Needs { prompt, context, .. } = *needs;
    // An answer needs room for one token at least.
    let fits = if needs.max_tokens == Some(0) { prompt <= context } else { prompt < context };
    ensure!(
        fits,
        "the prompt has {prompt} tokens, but the model's context has {context} for prompt and answer together; \
         shorten the prompt"
    );
    let wanted = needs.max_tokens.map_or(context, |n| context.min(prompt.saturating_add(n)));
    let affordable = affordable(needs);
    if wanted <= affordable {
        return Ok(Capacity { tokens: wanted, is_cut: false });
    }
    if needs.max_tokens.is_none() && affordable > prompt {
        return Ok(Capacity { tokens: affordable, is_cut: true });
    }
    bail!(
        "the cache for {wanted} tokens needs {}, but only {} of memory can be used for it; give a smaller -n, a \
         shorter prompt or --kv-dtype f16",
        in_words(needs.bytes_per_token.saturating_mul(wanted as u64), "B"),
        in_words(needs.memory.unwrap_or(0), "B"),
    )
}

/// Room for a conversation: `asked` tokens, or as many as a chat usually needs.
pub fn choose_for_chat(asked: Option<usize>, needs: &Needs) -> Result<Capacity> {
    let context = needs.context;
    ensure!(
        asked.is_none_or(|n| n <= context),
        "-c {} is more than the model's context of {context} tokens; give a smaller number",
        asked.unwrap_or_default()
    );
    let wanted = asked.unwrap_or(context.min(CHAT_TOKENS));
    let affordable = affordable(needs);
    ensure!(
        wanted <= affordable || asked.is_none() && affordable > 0,
        "the cache for {wanted} tokens needs {}, but only {} of memory can be used for it; give a smaller -c or --dtype \
         bf16",
        in_words(needs.bytes_per_token.saturating_mul(wanted as u64), "B"),
        in_words(needs.memory.unwrap_or(0), "B"),
    );
    Ok(Capacity { tokens: wanted.min(affordable), is_cut: affordable < wanted })
}

/// What several sequences need at once.
pub struct Room {
    pub sequences: usize,
    /// Of all sequences together.
    pub tokens: usize,
    pub bytes_per_token: u64,
    pub bytes_per_sequence: u64,
}

/// Refuses sequences that do not fit into `memory`, if that is known.
pub fn check_sequences(room: &Room, memory: Option<u64>) -> Result<()> {
    let (tokens, sequences) = (room.tokens as u64, room.sequences as u64);
    let state = room.bytes_per_sequence.saturating_mul(sequences);
    let needed = room.bytes_per_token.saturating_mul(tokens).saturating_add(state);
    ensure!(
        memory.is_none_or(|bytes| needed <= bytes),
        "the cache for {tokens} tokens in {sequences} sequence{} needs {}, but only {} of memory can be used for it; give \
         fewer --sequences, a smaller --depth or --kv-dtype f16",
        if sequences == 1 { "" } else { "s" },
        in_words(needed, "B"),
        in_words(memory.unwrap_or(0), "B"),
    );
    Ok(())
}

fn affordable(needs: &Needs) -> usize {
    let tokens = needs.memory.and_then(|bytes| bytes.checked_div(needs.bytes_per_token));
    tokens.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(prompt: usize, max_tokens: Option<usize>) -> Needs {
        Needs { prompt, max_tokens, context: 100, bytes_per_token: 1000, memory: Some(50_000) }
    }

    #[test]
    fn an_answer_takes_what_was_asked_for_within_the_context() {
        let room = |memory| Needs { memory, ..needs(10, Some(20)) };
        assert_eq!(choose(&room(None)).unwrap(), Capacity { tokens: 30, is_cut: false });
        let all = Needs { memory: None, ..needs(10, None) };
        assert_eq!(choose(&all).unwrap(), Capacity { tokens: 100, is_cut: false });
        let more = Needs { memory: None, ..needs(90, Some(usize::MAX)) };
        assert_eq!(choose(&more).unwrap(), Capacity { tokens: 100, is_cut: false });
    }

    #[test]
    fn want_of_memory_cuts_an_open_end_and_refuses_a_number() {
        assert_eq!(choose(&needs(10, None)).unwrap(), Capacity { tokens: 50, is_cut: true });
        let refused = choose(&needs(10, Some(60))).unwrap_err().to_string();
        assert!(refused.contains("70 tokens needs 70.0 kB, but only 50.0 kB"), "{refused}");
        assert!(choose(&needs(50, None)).is_err(), "no room for an answer");
        let stateless = Needs { bytes_per_token: 0, ..needs(10, Some(60)) };
        assert_eq!(choose(&stateless).unwrap().tokens, 70);
    }

    #[test]
    fn a_prompt_that_leaves_no_room_is_refused_with_both_counts() {
        for prompt in [100, 101, 10_000] {
            let refused = choose(&needs(prompt, None)).unwrap_err().to_string();
            assert!(refused.contains(&format!("{prompt} tokens")) && refused.contains("100"), "{refused}");
        }
        let computed_only = Needs { memory: None, ..needs(100, Some(0)) };
        assert_eq!(choose(&computed_only).unwrap().tokens, 100);
    }

    #[test]
    fn sequences_that_do_not_fit_together_are_refused_with_both_sizes() {
        let room = Room { sequences: 16, tokens: 16 * 100, bytes_per_token: 1000, bytes_per_sequence: 500 };
        assert!(check_sequences(&room, None).is_ok());
        assert!(check_sequences(&room, Some(1_608_000)).is_ok());
        let refused = check_sequences(&room, Some(1_607_999)).unwrap_err().to_string();
        assert!(refused.contains("1600 tokens in 16 sequences needs 1.6 MB, but only 1.6 MB"), "{refused}");
        let huge = Room { tokens: usize::MAX, ..room };
        assert!(check_sequences(&huge, Some(u64::MAX - 1)).is_err());
    }

    #[test]
    fn a_chat_takes_a_moderate_part_of_a_long_context() {
        let long = Needs { context: 1 << 20, memory: None, ..needs(0, None) };
        assert_eq!(choose_for_chat(None, &long).unwrap(), Capacity { tokens: CHAT_TOKENS, is_cut: false });
        assert_eq!(choose_for_chat(Some(1 << 20), &long).unwrap().tokens, 1 << 20);
        let refused = choose_for_chat(Some((1 << 20) + 1), &long).unwrap_err().to_string();
        assert!(refused.contains("1048577") && refused.contains("1048576 tokens"), "{refused}");
        assert_eq!(choose_for_chat(None, &needs(0, None)).unwrap(), Capacity { tokens: 50, is_cut: true });
        let refused = choose_for_chat(Some(60), &needs(0, None)).unwrap_err().to_string();
        assert!(refused.contains("60 tokens needs 60.0 kB, but only 50.0 kB"), "{refused}");
    }
}
