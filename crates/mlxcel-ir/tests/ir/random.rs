//! Random graphs: a list of numbers becomes a graph by choosing one op after the other, so that shrinking the
//! list shrinks the graph. Every list gives a well-typed graph.

use mlxcel_ir::*;
use proptest::prelude::*;

/// What a graph is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Purpose {
    /// Any type and any bytes.
    Text,
    /// Types that the reference evaluator rounds after every op, so that results compare bit for bit.
    Evaluation,
}

pub fn graphs(purpose: Purpose) -> impl Strategy<Value = Graph> {
    prop::collection::vec(any::<u32>(), 0..160).prop_map(move |words| graph(&words, purpose))
}

pub fn graph(words: &[u32], purpose: Purpose) -> Graph {
    let b = Builder::new();
    let mut c = Choices { words, at: 0, purpose };
    let mut pool = leaves(&b, &mut c);
    while c.at < words.len() {
        let scope = ["", "layers.0", "a \"b\" // c\n", "layers.1"][c.pick(4)];
        let new = if scope.is_empty() {
            step(&b, &pool, &mut c, 2)
        } else {
            b.scope(scope, || step(&b, &pool, &mut c, 2))
        };
        pool.extend(new.into_iter().filter(|t| is_small(*t)));
    }
    for i in 0..3 {
        b.output(&format!("out \"{i}\""), pool[pool.len() - 1 - c.pick(pool.len())]);
    }
    b.output("last", pool[pool.len() - 1]);
    b.finish().expect("the generator builds well-typed graphs")
}

/// The numbers that are left; zero when they are used up.
#[derive(Clone, Copy)]
struct Choices<'a> {
    words: &'a [u32],
    at: usize,
    purpose: Purpose,
}

impl Choices<'_> {
    fn word(&mut self) -> u32 {
        self.at += 1;
        self.words.get(self.at - 1).copied().unwrap_or(0)
    }

    fn pick(&mut self, n: usize) -> usize {
        self.word() as usize % n
    }

    fn tensor<'g>(&mut self, pool: &[Tensor<'g>]) -> Tensor<'g> {
        pool[self.pick(pool.len())]
    }

    /// A tensor of floats, cast if need be.
    fn float<'g>(&mut self, pool: &[Tensor<'g>]) -> Tensor<'g> {
        let t = self.tensor(pool);
        if t.dtype().is_float() { t } else { t.cast(DType::F64) }
    }

    fn float_type(&mut self) -> DType {
        match self.purpose {
            Purpose::Text => [DType::F32, DType::BF16, DType::F16, DType::F64][self.pick(4)],
            Purpose::Evaluation => [DType::F64, DType::BF16, DType::F16][self.pick(3)],
        }
    }

    /// Any finite number, or a sensible one for evaluation.
    fn number(&mut self) -> f64 {
        let any = f64::from_bits(u64::from(self.word()) << 32 | u64::from(self.word()));
        if self.purpose == Purpose::Text && any.is_finite() { any } else { 1e-6 }
    }

    fn constant<'g>(&mut self, b: &'g Builder) -> Tensor<'g> {
        let shape: &[usize] = [&[][..], &[4], &[2, 4], &[1, 4]][self.pick(4)];
        let count: usize = shape.iter().product();
        let special = [1.0, 0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5, -3.25];
        if self.purpose == Purpose::Evaluation {
            let dtype = [DType::F64, DType::BF16, DType::I32][self.pick(3)];
            let uniform = self.pick(2) == 0;
            let first = special[self.pick(8)];
            let values: Vec<f64> =
                (0..count).map(|_| if uniform { first } else { special[self.pick(8)] }).collect();
            return b.constant(HostTensor::from_f64(dtype, shape, &values));
        }
        let dtype = DType::PLAIN[self.pick(DType::PLAIN.len())];
        let bytes = dtype.storage_bytes(shape).expect("small");
        let bytes = (0..bytes).map(|_| [0x00, 0x7f, 0x80, 0xff, 0xc0, 0x3f, self.word() as u8][self.pick(7)]);
        b.constant(HostTensor::from_bytes(dtype, shape.to_vec(), bytes.collect()).expect("sized"))
    }
}

fn leaves<'g>(b: &'g Builder, c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let float = c.float_type();
    let mut pool = vec![
        b.input("x", float, shape!["tokens", 4]),
        b.input("y", float, shape!["tokens", 4]),
        b.input_padded("i", DType::I32, shape!["tokens"], -1),
        b.weight("w", float, &[4]),
        b.weight_pieces("p", float, &[2, 4], vec!["p.0".into(), "p.1".into()]),
    ];
    let state = b.state("s", float, shape!["tokens", 4]);
    pool.push(state);
    if c.pick(2) == 0 {
        b.update("s", state + pool[0]);
    }
    if c.purpose == Purpose::Text {
        let other = DType::PLAIN[c.pick(DType::PLAIN.len())];
        pool.push(b.input("any", other, shape!["pages", 3]));
    }
    pool
}

/// Few elements, so that graphs stay cheap to evaluate: one symbol and a small product.
fn is_small(t: Tensor<'_>) -> bool {
    let shape = t.shape();
    let fixed: usize = shape.iter().filter_map(Dim::as_fixed).product();
    let symbols = shape.iter().filter(|d| d.as_fixed().is_none()).count();
    shape.len() <= 4 && symbols <= 1 && fixed <= 64
}

/// The results of one random op on tensors of the pool.
fn step<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>, depth: usize) -> Vec<Tensor<'g>> {
    match c.pick(9) {
        0 | 1 => vec![elementwise(b, pool, c)],
        2 => vec![same(b, pool, c)],
        3 => movement(b, pool, c),
        4 => indexed(b, pool, c),
        5 => reduction(c.float(pool), c),
        6 => composite(b, pool, c),
        7 => model(b, pool, c),
        _ if depth > 0 => control(b, pool, c, depth - 1),
        _ => vec![c.constant(b)],
    }
}

fn elementwise<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Tensor<'g> {
    let x = c.tensor(pool);
    let other = pool.iter().copied().filter(|t| t.ty() == x.ty()).nth(c.pick(3)).unwrap_or(x);
    let f = c.float(pool);
    match c.pick(12) {
        0 => f.exp(),
        1 => f.tanh(),
        2 => -f,
        3 => f.abs().sqrt(),
        4 => x.eq(other).select(x, other),
        5 if x.dtype() != DType::Bool => x + other,
        6 if x.dtype() != DType::Bool => x * other,
        7 if x.dtype() != DType::Bool => x.max(other),
        8 => f * c.constant(b).cast(f.dtype()).reshape_to_scalar(),
        9 => f.activation([Activation::Silu, Activation::GeluTanh, Activation::Relu2][c.pick(3)]),
        10 => x.cast([c.float_type(), DType::I32, DType::Bool][c.pick(3)]),
        _ => x.ne(other),
    }
}

trait ToScalar<'g> {
    fn reshape_to_scalar(self) -> Tensor<'g>;
}

impl<'g> ToScalar<'g> for Tensor<'g> {
    /// The first element.
    fn reshape_to_scalar(self) -> Tensor<'g> {
        (0..self.rank()).fold(self, |t, axis| t.slice(axis, 0, 1)).reshape(vec![])
    }
}

/// Something that may change nothing.
fn same<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Tensor<'g> {
    let x = c.tensor(pool);
    let other = pool.iter().copied().filter(|t| t.ty() == x.ty()).nth(c.pick(3)).unwrap_or(x);
    let number = [1.0, 0.0, -0.0][c.pick(3)];
    let swap: Vec<usize> = (0..x.rank()).rev().collect();
    match c.pick(8) {
        0 if x.dtype() != DType::Bool => x * number,
        1 if x.dtype() != DType::Bool => x + number,
        2 if x.dtype() != DType::Bool => x - number,
        3 if x.dtype() != DType::Bool => x.number(number) + x,
        4 => x.transpose(&swap).transpose(&turned(x.rank())).transpose(&turned(x.rank())),
        5 => b.concat(&[x.unsqueeze(0)], 0).reshape(x.shape()),
        6 if x.rank() > 0 => x.slice(0, 0, x.dim(0)),
        _ => b.scalar(c.pick(2) == 0).select(x, other),
    }
}

/// The axes with the first one last.
fn turned(rank: usize) -> Vec<usize> {
    (0..rank).map(|axis| (axis + 1) % rank).collect()
}

fn movement<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let x = c.tensor(pool);
    let axis = c.pick(x.rank().max(1));
    let fixed = x.shape().get(axis).and_then(Dim::as_fixed);
    let moved = match (c.pick(8), fixed) {
        (0, _) => x.reshape(vec![x.ty().elements()]),
        (1, _) => x.unsqueeze(axis),
        (2, _) => x.transpose(&(0..x.rank()).rev().collect::<Vec<_>>()),
        (3, Some(n)) if n > 1 => x.slice(axis, 1, n),
        (4, Some(n)) if n > 1 => x.slice_step(axis, 0, n, 2),
        (5, Some(_)) => b.concat(&[x, x], axis),
        (6, _) if x.dtype() != DType::Bool => {
            let one = vec![1; x.rank()];
            x.pad(&vec![0; x.rank()], &one, x.number(2.0))
        }
        _ => x.broadcast([shape![2], x.shape()].concat()),
    };
    vec![moved]
}

fn indexed<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let x = c.tensor(pool);
    if x.rank() == 0 {
        return vec![b.iota(DType::I32, shape![4], 0), b.size(&Dim::sym("tokens"))];
    }
    let index = b.constant(HostTensor::new(&[2], &[c.pick(5) as i32 - 1, c.pick(5) as i32]));
    let starts = || b.constant(HostTensor::new(&[x.rank()], &vec![1i32; x.rank()]));
    let rows = x.broadcast(x.shape()).gather(index, 0);
    match c.pick(5) {
        0 => vec![rows],
        1 => vec![x.scatter(index, rows, ScatterMode::Set)],
        2 if x.dtype() != DType::Bool => vec![x.scatter(index, rows, ScatterMode::Add)],
        3 => vec![x.dynamic_slice(starts(), vec![Dim::fixed(1); x.rank()])],
        _ => vec![x.update_slice(x.dynamic_slice(starts(), vec![Dim::fixed(1); x.rank()]), starts())],
    }
}

fn reduction<'g>(x: Tensor<'g>, c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let op = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min][c.pick(4)];
    if x.rank() == 0 {
        return vec![x.reduce(op, &[])];
    }
    let axis = c.pick(x.rank());
    match c.pick(6) {
        0 => vec![x.reduce(op, &[axis])],
        1 => vec![x.reduce_keep(op, axis)],
        2 => vec![x.cumulative(op, axis)],
        3 => x.sort_descending(axis).to_vec(),
        4 => vec![x.argmax(axis), x.mean_keep(axis)],
        _ => vec![x.softmax(axis)],
    }
}

fn composite<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let x = c.float(pool);
    let Some(last) = x.shape().last().and_then(Dim::as_fixed) else { return vec![x.sigmoid()] };
    let other = pool.iter().copied().filter(|t| t.ty() == x.ty()).nth(c.pick(3)).unwrap_or(x);
    let weight = || b.constant(HostTensor::from_f64(x.dtype(), &[last], &vec![0.5; last]));
    match c.pick(8) {
        0 => vec![x.rms_norm(1e-6, Some(weight()))],
        1 | 2 => {
            let sum = x + other;
            vec![sum, sum.rms_norm(c.number(), Some(weight()))]
        }
        3 => vec![x.layer_norm(1e-5, Some(weight()), None)],
        4 => x.top_k(last.min(2)).to_vec(),
        5 if last > 0 => x.rfft().to_vec(),
        6 => vec![x.dot_general(weight(), &[], &[(x.rank() - 1, 0)])],
        _ => vec![x.dot_general(x, &[], &[(x.rank() - 1, x.rank() - 1)])],
    }
}

/// Ops with the shapes a model has.
fn model<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>) -> Vec<Tensor<'g>> {
    let seed = c.float(pool).reshape_to_scalar();
    let positions = pool[2];
    let of = |shape: Shape| seed.broadcast(shape);
    match c.pick(7) {
        0 => {
            let q4 = DType::Quant(QuantFormat::Gguf(GgufFormat::Q4_0));
            vec![of(shape!["tokens", 32]).linear(b.weight(&format!("q{}", c.at), q4, &[4, 32]), None)]
        }
        1 => {
            let inv_freq = b.constant(HostTensor::new(&[2], &[1.0f32, 0.01]));
            let op = Op::Rope { interleaved: c.pick(2) == 0, scale: 1.0 / 3.0 };
            vec![of(shape!["tokens", 2, 4]).rope(positions, inv_freq, op)]
        }
        2 => {
            let spec = AttentionSpec {
                scale: 0.1,
                causal: c.pick(2) == 0,
                window: [None, Some(2)][c.pick(2)],
                softcap: [None, Some(50.0)][c.pick(2)],
                mask: false,
                sinks: false,
            };
            let qkv = [shape![1, "tokens", 2, 4], shape![1, "tokens", 1, 4], shape![1, "tokens", 1, 4]];
            vec![b.attention(qkv.map(of), None, None, spec).reshape(shape!["tokens", 8])]
        }
        3 => {
            let groups = [None, Some(RouteGroups { count: 2, keep: 1 })][c.pick(2)];
            let score = [RouteScore::Softmax, RouteScore::Sigmoid, RouteScore::SoftmaxOfChosen][c.pick(3)];
            let spec =
                RouteSpec { top_k: 2, score, renormalize: true, scale: 2.5, groups, correction: false };
            let [_, ids] = of(shape!["tokens", 4]).moe_route(spec, None);
            vec![ids]
        }
        4 => {
            let (window, strides) = ([2], [1 + c.pick(2)]);
            vec![of(shape![1, 2, 6]).pool(PoolKind::Mean, &window, &strides, &[(1, 0)])]
        }
        5 => {
            let op = Op::Conv { strides: vec![1], padding: vec![(1, 1)], dilation: vec![1], groups: 2 };
            b.apply(op, &[of(shape![1, 4, 6]), of(shape![2, 2, 3])])
        }
        _ => vec![b.weight(&format!("e{}", c.at), seed.dtype(), &[5, 4]).embedding(positions, seed.dtype())],
    }
}

fn control<'g>(b: &'g Builder, pool: &[Tensor<'g>], c: &mut Choices<'_>, depth: usize) -> Vec<Tensor<'g>> {
    let x = c.float(pool);
    let captures = [x, c.tensor(pool)];
    let mut first = *c;
    let mut second = Choices { at: c.at + 3, ..*c };
    c.at += 12;
    match c.pick(3) {
        0 => {
            let condition = b.scalar(1.0).lt(x.reshape_to_scalar().cast(DType::F64));
            let condition = if c.pick(2) == 0 { condition } else { b.scalar(true) };
            b.if_else(
                condition,
                &captures,
                |b, x| body(b, x, &mut first, depth),
                |b, x| body(b, x, &mut second, depth),
            )
        }
        1 => {
            let count = b.scalar(0i32);
            let carried = [count, x];
            b.while_loop(
                &carried,
                &captures[1..],
                |_, x| x[0].lt(x[0].number(3.0)),
                |b, x| vec![x[0] + 1.0, body(b, &x[1..], &mut first, depth)[0]],
            )
        }
        _ => {
            let scanned = b.iota(DType::I32, shape![3, 2], 0);
            b.scan(&[x], &[scanned], &captures[1..], |b, x| {
                let next = body(b, x, &mut first, depth)[0];
                vec![next, next.reshape_to_scalar(), x[1]]
            })
        }
    }
}

/// A region of a few ops that returns a value of the type of its first argument.
fn body<'r>(b: &'r Builder, x: &[Tensor<'r>], c: &mut Choices<'_>, depth: usize) -> Vec<Tensor<'r>> {
    let mut pool = x.to_vec();
    for _ in 0..c.pick(4) {
        let new = match c.pick(4) {
            0 => reduction(c.float(&pool), c),
            1 => vec![same(b, &pool, c)],
            2 if depth > 0 => control(b, &pool, c, depth - 1),
            _ => vec![elementwise(b, &pool, c)],
        };
        pool.extend(new.into_iter().filter(|t| is_small(*t)));
    }
    let fitting: Vec<Tensor<'r>> = pool.iter().copied().filter(|t| t.ty() == x[0].ty()).collect();
    vec![fitting[fitting.len() - 1].tanh()]
}
