//! What an engine will do with a graph, as a table or as JSON: each op with the engine's choice and its cost when one
//! token of one sequence is computed.

use mlxcel_engine::{Choice, Engine};
use mlxcel_ir::{Bindings, Cost, Graph};
use serde::Serialize;

use crate::table::{self, Align};

#[derive(Debug, Serialize)]
pub struct Plan {
    pub engine: &'static str,
    /// The sizes that costs are counted for.
    pub sizes: Bindings,
    pub ops: Vec<PlannedOp>,
    pub total_bytes: u64,
    pub total_flops: u64,
}

#[derive(Debug, Serialize)]
pub struct PlannedOp {
    pub node: u32,
    pub op: String,
    pub label: String,
    pub results: Vec<String>,
    pub choice: &'static str,
    /// Weights, operands and results together; `None` where that depends on the data.
    pub bytes: Option<u64>,
    pub flops: Option<u64>,
}

pub fn plan(graph: &Graph, engine: &dyn Engine) -> Plan {
    let caps = engine.caps();
    let ones = ["tokens", "sequences", "rows", "pages", "blocks", "slots"].map(|name| (name.to_string(), 1));
    let mut sizes = Bindings::from(ones);
    sizes.insert("block".to_string(), caps.block_size);
    let computed = (0u32..).zip(graph.nodes()).filter(|(_, node)| !node.op.is_leaf());
    let ops: Vec<PlannedOp> = mlxcel_engine::plan(graph, engine)
        .into_iter()
        .zip(computed)
        .map(|(line, (index, node))| {
            let cost = graph.cost(index, &sizes);
            PlannedOp {
                node: index,
                op: node.op.name(),
                label: node.label.clone(),
                results: node.types.iter().map(|t| t.to_string()).collect(),
                choice: if line.choice == Choice::Native { "native" } else { "decomposed" },
                bytes: cost.map(bytes),
                flops: cost.map(|c| c.flops),
            }
        })
        .collect();
    let total =
        |part: fn(&PlannedOp) -> Option<u64>| ops.iter().filter_map(part).fold(0, u64::saturating_add);
    let (total_bytes, total_flops) = (total(|op| op.bytes), total(|op| op.flops));
    Plan { engine: caps.name, sizes, ops, total_bytes, total_flops }
}

fn bytes(cost: Cost) -> u64 {
    [cost.weight_bytes, cost.read_bytes, cost.write_bytes].into_iter().fold(0, u64::saturating_add)
}

impl Plan {
    /// The table, headed by what its numbers mean.
    pub fn to_text(&self) -> String {
        let header = ["node", "op", "label", "result", "choice", "bytes", "flops"].map(str::to_string);
        let number = |n: Option<u64>| n.map_or("?".to_string(), |n| n.to_string());
        let lines = self.ops.iter().map(|op| {
            let node = format!("%{}", op.node);
            let (label, results, choice) = (op.label.clone(), op.results.join(", "), op.choice.to_string());
            [node, op.op.clone(), label, results, choice, number(op.bytes), number(op.flops)]
        });
        let total = ["", "total", "", "", "", &self.total_bytes.to_string(), &self.total_flops.to_string()];
        let rows: Vec<_> = [header].into_iter().chain(lines).chain([total.map(str::to_string)]).collect();
        let mut align = [Align::Left; 7];
        align[5..].fill(Align::Right);
        let sizes: Vec<String> = self.sizes.iter().map(|(name, size)| format!("{name} = {size}")).collect();
        format!(
            "plan of the {} engine; bytes and flops of one step with {}\n{}",
            self.engine,
            sizes.join(", "),
            table::format(align, &rows)
        )
    }
}
