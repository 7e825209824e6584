//! A group of reference engines in one process, as if it were one engine: what shows that sharding keeps a model's
//! meaning before any network is involved.

use mlxcel_engine::{
    Caps, Engine, EngineError, Feeds, HostTensor, Program, ReferenceEngine, ReferenceMember, Shards, Ticket,
    WeightSource,
};
use mlxcel_ir::interp::Group;
use mlxcel_ir::passes::{Member, shard};
use mlxcel_ir::{Bindings, Graph, Op, Type};

/// So many members, each with its share of every model.
#[derive(Clone, Copy, Debug)]
pub struct ShardedReference {
    pub members: usize,
}

impl Engine for ShardedReference {
    fn caps(&self) -> Caps {
        ReferenceEngine.caps()
    }

    fn native(&self, op: &Op, operands: &[Type]) -> bool {
        ReferenceEngine.native(op, operands)
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        dims: &Bindings,
    ) -> Result<Box<dyn Program>, EngineError> {
        let group = Group::new(self.members);
        let member = |rank: usize| {
            let sharded = shard(graph, Member { rank, members: self.members })?;
            let engine = ReferenceMember { rank, group: group.clone() };
            engine.compile(&sharded.graph, &Shards::new(weights, &sharded.cuts), dims)
        };
        let members = (0..self.members).map(member).collect::<Result<_, _>>()?;
        Ok(Box::new(Members { members }))
    }
}

struct Members {
    members: Vec<Box<dyn Program>>,
}

impl Program for Members {
    /// Every member runs the step in a thread; the tickets are those of the first.
    fn submit(&mut self, feeds: &Feeds, outputs: &[&str]) -> Result<Ticket, EngineError> {
        let tickets = std::thread::scope(|scope| {
            let started: Vec<_> =
                self.members.iter_mut().map(|m| scope.spawn(|| m.submit(feeds, outputs))).collect();
            started.into_iter().map(|t| t.join().expect("a member does not panic")).collect::<Vec<_>>()
        });
        tickets.into_iter().reduce(|first, next| next.and(first)).expect("a group has members")
    }

    /// What the first member has; the others must have the same.
    fn collect(&mut self, ticket: Ticket) -> Result<Vec<HostTensor>, EngineError> {
        let collected = self.members.iter_mut().map(|m| m.collect(Ticket(ticket.0)));
        let mut collected = collected.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = collected.next().expect("a group has members");
        assert!(collected.all(|other| other == first), "members disagree");
        Ok(first)
    }

    fn copy_state(&mut self, axis: &str, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        self.members.iter_mut().try_for_each(|m| m.copy_state(axis, pairs))
    }
}
