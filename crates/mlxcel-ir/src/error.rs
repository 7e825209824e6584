//! What can be wrong with a graph. Every message names the op, the node and the operand types.

/// Why a graph is not well formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IrError {
    #[error("{op} at node %{node}{}: {reason}; operands: {}", at(label), operands.join(", "))]
    Op { op: String, node: u32, label: String, operands: Vec<String>, reason: String },
    #[error("{what} '{name}' occurs twice")]
    DuplicateName { what: &'static str, name: String },
    #[error("output '{name}' refers to node %{node}, which is not defined")]
    UndefinedOutput { name: String, node: u32 },
    #[error("state '{name}' is updated but not declared")]
    UnknownState { name: String },
    #[error("state '{name}' is declared as {declared} but updated with {updated}")]
    StateType { name: String, declared: String, updated: String },
    #[error(
        "{op} at node %{node}{}: the recorded type {recorded} is not the inferred type {inferred}",
        at(label)
    )]
    TypeMismatch { op: String, node: u32, label: String, recorded: String, inferred: String },
    #[error("in a region of {op} at node %{node}{}: {source}", at(label))]
    Region { op: String, node: u32, label: String, source: Box<IrError> },
    #[error("{op}: a tensor of another graph was used; pass it to the region as a capture")]
    ForeignTensor { op: String },
    #[error("{what} cannot be shared by {members} members: {reason}")]
    Unshardable { what: String, members: usize, reason: String },
    #[error("line {line}: {reason}")]
    Parse { line: usize, reason: String },
}

fn at(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!(" ({label})") }
}
