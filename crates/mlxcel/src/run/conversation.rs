//! What was said so far, as messages. How they become a prompt is decided by the model's template, or by its absence.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::prompt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    pub system: Option<String>,
    /// Of user and assistant.
    pub messages: Vec<Message>,
}

impl Conversation {
    pub fn push(&mut self, role: Role, content: String) {
        self.messages.push(Message { role, content });
    }

    /// All messages, the system's first.
    pub fn all(&self) -> Vec<Message> {
        let system = self.system.iter().map(|s| Message { role: Role::System, content: s.clone() });
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// The messages as templates expect them.
    pub fn for_template(&self) -> Vec<Value> {
        let role = |message: &Message| match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        self.all().iter().map(|message| prompt::message(role(message), &message.content)).collect()
    }

    /// One text, for a model that goes on with texts: what the user adds begins on a new line.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        for message in &self.messages {
            if message.role == Role::User && !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&message.content);
        }
        text
    }

    /// Whether nothing stands on the line of the last answer's end.
    pub fn is_at_line_start(&self) -> bool {
        self.messages.last().is_none_or(|m| m.content.is_empty() || m.content.ends_with('\n'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_goes_on_where_the_answer_ended_and_on_a_new_line_for_the_user() {
        let mut conversation = Conversation::default();
        conversation.push(Role::User, "Once".to_string());
        conversation.push(Role::Assistant, " upon a time".to_string());
        conversation.push(Role::User, "There was".to_string());
        assert_eq!(conversation.as_text(), "Once upon a time\nThere was");
    }
}
