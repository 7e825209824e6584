//! How models mark the reasoning before an answer. What is done with it is decided elsewhere.

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStyle {
    /// `<think>…</think>`: DeepSeek, Qwen, GLM and most others.
    Think,
    /// `[THINK]…[/THINK]`: Mistral.
    Bracket,
    /// `<seed:think>…</seed:think>`.
    Seed,
    /// The analysis channel of gpt-oss.
    Harmony,
}

impl ReasoningStyle {
    const ALL: [Self; 4] = [Self::Harmony, Self::Bracket, Self::Seed, Self::Think];

    /// Reads the style from the source of a chat template.
    pub fn detect(template: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|style| template.contains(style.markers().1))
    }

    /// What opens and closes reasoning.
    pub fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::Think => ("<think>", "</think>"),
            Self::Bracket => ("[THINK]", "[/THINK]"),
            Self::Seed => ("<seed:think>", "</seed:think>"),
            Self::Harmony => ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
        }
    }

    /// Whether the marks are control tokens in the models that use them.
    pub(crate) fn needs_control_tokens(self) -> bool {
        self != Self::Think
    }

    /// Whether a prompt ends inside of reasoning, because the template has opened it.
    pub(crate) fn is_open_at_end(self, prompt: &str) -> bool {
        self != Self::Harmony && prompt.trim_end().ends_with(self.markers().0)
    }
}
