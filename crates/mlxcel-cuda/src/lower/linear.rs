//! Products with stored weights, and rows of them as plain numbers.

use mlxcel_engine::weights::quant::decode_gguf;
use mlxcel_ir::{DType, GgufFormat, HostTensor, Node, Op, QuantFormat, Value};

use super::{Frame, Held, Lower, Result, grid};
use crate::code::gated;
use crate::driver::Shape;
use crate::params::Params;
use crate::tape::RootKind;
use crate::view::{View, code};

/// A weight in any form.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) held: Held,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

/// Whether kernels decode a weight of this type.
pub(crate) fn decodes(dtype: DType) -> bool {
    match dtype {
        DType::Quant(QuantFormat::Affine { group, .. }) => group % 8 == 0,
        DType::Quant(_) => true,
        plain => plain.is_float() && plain != DType::F64,
    }
}

/// The magnitudes of IQ2_XXS and IQ3_XXS, read off what their decoder makes of every code.
pub(super) fn tables() -> HostTensor {
    let mut bytes = vec![];
    let one = 0x3c00u16.to_le_bytes();
    for (format, size, scale, each) in [(GgufFormat::Iq2Xxs, 66, 8.0, 8), (GgufFormat::Iq3Xxs, 98, 4.0, 4)] {
        for index in 0..=255u8 {
            let mut block = vec![0; size];
            block[..2].copy_from_slice(&one);
            block[2] = index;
            let mut out = [0.0; 256];
            decode_gguf(format, &block, &mut out);
            bytes.extend(out[..each].iter().map(|v| (v * scale) as u8));
        }
    }
    HostTensor::new(&[bytes.len()], &bytes)
}

/// Which kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    /// In f32, whatever the types.
    Rows(DType),
    /// In tensor cores: the kernel for up to 8 rows at a time, and one for up to 16 if there is.
    Tensor(&'static str, Option<&'static str>),
}

macro_rules! names {
    ($name:literal) => {
        (concat!("linear_", $name, "_8"), None)
    };
    ($name:literal, 16) => {
        (concat!("linear_", $name, "_8"), Some(concat!("linear_", $name, "_16")))
    };
}

impl Lower<'_> {
    pub(super) fn products(&mut self, frame: &mut Frame<'_>, index: usize, node: &Node) -> Result<Vec<Held>> {
        let out = match &node.op {
            Op::Linear { bias } => {
                let (x, w) = (self.tensor(frame, node.inputs[0])?, self.matrix(frame, node.inputs[1])?);
                let norm = frame.unnormed.get(&node.inputs[0]).cloned();
                if let Some(gate) = gate(frame, index)
                    && self.gated_linear(frame, (&x, norm.as_ref()), &w, &gate)?
                {
                    return Ok(vec![]);
                }
                let bias = if *bias { Some(self.vector(frame, node.inputs[2])?) } else { None };
                let residual = self.residual(frame, index, &x, &w)?;
                let out = self.linear(node, (&x, norm.as_ref()), &w, (bias.as_ref(), residual.as_ref()))?;
                if residual.is_some() {
                    frame.added.insert(index as u32);
                }
                out
            }
            Op::ExpertLinear { bias } => {
                let bias = if *bias { Some(self.vector(frame, node.inputs[3])?) } else { None };
                let w = self.matrix(frame, node.inputs[1])?;
                self.expert_linear(frame, node, &w, bias.as_ref())?
            }
            Op::Embedding { .. } => {
                let w = self.matrix(frame, node.inputs[0])?;
                let ids = self.vector(frame, node.inputs[1])?;
                let out = self.fresh_like(&node.types[0])?;
                self.decode(&out, &w, Some(&ids))?;
                out
            }
            _ => {
                if let Held::Tensor(x) = frame.get(node.inputs[0]).clone() {
                    return Ok(vec![Held::Tensor(self.cast(&x, node)?)]);
                }
                let w = self.matrix(frame, node.inputs[0])?;
                let out = self.fresh_like(&node.types[0])?;
                self.decode(&out, &w, None)?;
                out
            }
        };
        Ok(vec![Held::Tensor(out)])
    }

    /// A plain weight as numbers of another type.
    fn cast(&mut self, x: &View, node: &Node) -> Result<View> {
        let ty = &node.types[0];
        if x.dtype == ty.dtype {
            return Ok(x.clone());
        }
        let from = mlxcel_ir::Type::new(x.dtype, ty.shape.clone());
        let cast = Node {
            op: Op::Cast(ty.dtype),
            inputs: vec![],
            regions: vec![],
            types: vec![ty.clone()],
            label: String::new(),
        };
        self.elementwise(&cast, std::slice::from_ref(x), &[from])
    }

    fn vector(&mut self, frame: &Frame<'_>, v: Value) -> Result<View> {
        let view = self.tensor(frame, v)?;
        self.dense(&view)
    }

    fn matrix(&mut self, frame: &Frame<'_>, v: Value) -> Result<Matrix> {
        Ok(match frame.get(v).clone() {
            Held::Tensor(view) => {
                let view = self.dense(&view)?;
                Matrix { dtype: view.dtype, shape: view.shape.clone(), held: Held::Tensor(view) }
            }
            Held::Packed(stored) => {
                Matrix { dtype: stored.dtype, shape: stored.shape.clone(), held: Held::Packed(stored) }
            }
        })
    }

    /// The fields of a weight in the kernels' structs.
    fn weight_params(&self, p: Params, w: &Matrix) -> Params {
        let p = match &w.held {
            Held::Tensor(view) => p.view(view).null().null(),
            Held::Packed(stored) => stored.parts.iter().fold(p, |p, part| p.address(*part)),
        };
        let (format, dtype, bits, group) = match w.dtype {
            DType::Quant(QuantFormat::Affine { bits, group, scale }) => {
                (1, code(scale.dtype()), bits as usize, group as usize)
            }
            DType::Quant(QuantFormat::MxFp4) => (2, 0, 4, 32),
            DType::Quant(QuantFormat::Gguf(g)) => {
                let at = GgufFormat::ALL.iter().position(|f| *f == g).expect("every format is listed");
                (3 + at, 0, 0, 0)
            }
            plain => (0, code(plain), 0, 0),
        };
        let cols = w.shape.last().copied().unwrap_or(1);
        p.address(self.tables).int(format).int(dtype).int(bits).int(group).int(cols).int(0)
    }

    pub(super) fn decode(&mut self, out: &View, w: &Matrix, ids: Option<&View>) -> Result<()> {
        let cols = w.shape.last().copied().unwrap_or(1);
        let rows = out.elements().checked_div(cols).unwrap_or(0);
        let limit = w.shape[..w.shape.len().saturating_sub(1)].iter().product::<usize>();
        let p = self.weight_params(Params::new(), w).view(out).view_or_null(ids);
        let p =
            p.int(code(out.dtype)).int(ids.map_or(0, |v| code(v.dtype))).long(rows as i64).long(limit as i64);
        self.spread("decode_rows", rows * cols.div_ceil(8), p)
    }

    /// What is added to a product right after it, if a norm does that and the product is of a few rows.
    fn residual(&mut self, frame: &Frame<'_>, index: usize, x: &View, w: &Matrix) -> Result<Option<View>> {
        let [reader] = frame.readers[index][..] else { return Ok(None) };
        let node = &frame.graph.nodes()[reader];
        let Op::AddRmsNorm { .. } = node.op else { return Ok(None) };
        let other = node.inputs[usize::from(node.inputs[0].node == index as u32)];
        let held = frame.values[other.node as usize][other.result as usize].is_some();
        let Some(job) = self.few(x, w).filter(|_| held && frame.uses[index][0] == 1) else { return Ok(None) };
        let view = self.tensor(frame, other)?;
        Ok((job && view.rows().is_some() && !frame.unnormed.contains_key(&other)).then_some(view))
    }

    /// Whether a product of these is one of a few rows in tensor cores; `None` if the rows are not at equal distances.
    fn few(&self, x: &View, w: &Matrix) -> Option<bool> {
        let (m, k, stride) = x.rows()?;
        let job = Job {
            x,
            stride,
            out: x,
            w,
            bias: None,
            ids: None,
            residual: None,
            norm: None,
            m,
            n: w.shape[0],
            k,
        };
        Some(
            !self.ctx.exact
                && (1..=8).contains(&m)
                && matches!(product(&job), Product::Tensor(..))
                && job.staged() > 0,
        )
    }

    /// Whether every reader of a norm's result is a product of a few rows, which can norm its rows itself.
    pub(super) fn leaves_norm(&mut self, frame: &Frame<'_>, v: Value, x: &View) -> Result<bool> {
        let readers: Vec<usize> = frame.readers[v.node as usize].clone();
        let mut reads = 0;
        for reader in readers {
            let node = &frame.graph.nodes()[reader];
            if !node.inputs.contains(&v) {
                continue;
            }
            let product = matches!(node.op, Op::Linear { .. }) && node.inputs[0] == v && node.inputs[1] != v;
            if !product {
                return Ok(false);
            }
            // A weight that is not there yet is computed, and the norm with it.
            let w = node.inputs[1];
            if frame.values[w.node as usize][w.result as usize].is_none()
                && !self.leaves.weights.contains_key(&w.node)
            {
                return Ok(false);
            }
            let w = match self.leaves.weights.get(&w.node).cloned() {
                Some(stored) => {
                    Matrix { dtype: stored.dtype, shape: stored.shape.clone(), held: Held::Packed(stored) }
                }
                None => self.matrix(frame, w)?,
            };
            if self.few(x, &w) != Some(true) {
                return Ok(false);
            }
            reads += 1;
        }
        Ok(reads > 0 && reads == frame.uses[v.node as usize][v.result as usize])
    }

    fn linear(
        &mut self,
        node: &Node,
        (x, norm): (&View, Option<&(View, f64)>),
        w: &Matrix,
        (bias, residual): (Option<&View>, Option<&View>),
    ) -> Result<View> {
        let norm = norm.map(|(w, eps)| (w, *eps));
        let residual = residual.and_then(|v| v.rows().map(|(.., stride)| (v, stride)));
        let out = self.fresh_like(&node.types[0])?;
        let (n, k) = (w.shape[0], w.shape[1]);
        let (x, m, stride) = self.row_operand(x)?;
        if m == 0 || n == 0 {
            return Ok(out);
        }
        let job = Job { x: &x, stride, out: &out, w, bias, ids: None, residual, norm, m, n, k };
        self.multiply(&job)?;
        Ok(out)
    }

    /// Gates and factors in one product that multiplies them at its end, for a few rows. Whether it was done.
    fn gated_linear(
        &mut self,
        frame: &mut Frame<'_>,
        (x, norm): (&View, Option<&(View, f64)>),
        w: &Matrix,
        gate: &Gate,
    ) -> Result<bool> {
        let name = match w.dtype {
            _ if self.ctx.exact => return Ok(false),
            DType::BF16 => "linear_bf16_plain_gated_8",
            DType::Quant(QuantFormat::Affine { bits: 4, group, .. }) if group % 32 == 0 => {
                "linear_bf16_affine4_gated_8"
            }
            _ => return Ok(false),
        };
        let Some((m, k, stride)) = x.rows().filter(|(m, ..)| (1..=8).contains(m)) else { return Ok(false) };
        let n = w.shape[0] / 2;
        let out = self.fresh_like(&frame.graph.nodes()[gate.end].types[0])?;
        let norm = norm.map(|(w, eps)| (w, *eps));
        let job = Job { x, stride, out: &out, w, bias: None, ids: None, residual: None, norm, m, n, k };
        if x.dtype != DType::BF16 || !matches!(product(&job), Product::Tensor(..)) {
            return Ok(false);
        }
        let mut p = self.linear_params(&job, job.staged() > 0);
        p.set_last_int(gate.activation as u32 + 1);
        if !self.multiply_streamed(&job, Some(gate.activation))? {
            self.launch(name, self.shape_for(w, grid([self.share(n, 1), 1, 1], 256, job.staged())), p)?;
        }
        gate.nodes.iter().for_each(|&i| frame.done[i] = true);
        self.hold(frame, gate.end, 0, Held::Tensor(out));
        Ok(true)
    }

    fn expert_linear(
        &mut self,
        frame: &Frame<'_>,
        node: &Node,
        w: &Matrix,
        bias: Option<&View>,
    ) -> Result<View> {
        let out = self.fresh_like(&node.types[0])?;
        let x = self.tensor(frame, node.inputs[0])?;
        let ids = self.vector(frame, node.inputs[2])?;
        let (x, _, stride) = self.row_operand(&x)?;
        let (n, k) = (w.shape[1], w.shape[2]);
        let pairs = ids.elements();
        if pairs == 0 || n == 0 {
            return Ok(out);
        }
        let shared = x.shape[1] == 1;
        let chosen = Chosen { ids: &ids, experts: w.shape[0], choices: ids.shape[1], shared };
        let job = Job {
            x: &x,
            stride,
            out: &out,
            w,
            bias,
            ids: Some(chosen),
            residual: None,
            norm: None,
            m: pairs,
            n,
            k,
        };
        self.multiply(&job)?;
        Ok(out)
    }

    /// An operand as rows at equal distances: itself if it is, else a copy.
    pub(super) fn row_operand(&mut self, x: &View) -> Result<(View, usize, i64)> {
        if let Some((m, _, stride)) = x.rows() {
            return Ok((x.clone(), m, stride));
        }
        let dense = self.copied(x)?;
        let width = dense.shape.last().copied().unwrap_or(1);
        let m = dense.elements() / width.max(1);
        Ok((dense, m, width as i64))
    }

    /// How a kernel is started that begins to read its weight before it waits for the kernels before: a weight that is
    /// computed in the step must be there first.
    pub(super) fn shape_for(&self, w: &Matrix, shape: Shape) -> Shape {
        Shape { overlaps: shape.overlaps && self.is_stored(w), ..shape }
    }

    /// Whether a weight lies on the device from the start.
    pub(super) fn is_stored(&self, w: &Matrix) -> bool {
        match &w.held {
            Held::Tensor(view) => matches!(self.roots[view.root].kind, RootKind::Fixed(_)),
            Held::Packed(_) => true,
        }
    }

    /// The fields of the kernels' struct; `staged` says whether rows of `x` go to shared memory first.
    pub(super) fn linear_params(&self, job: &Job<'_>, staged: bool) -> Params {
        let p = Params::new()
            .view(job.x)
            .view(job.out)
            .view_or_null(job.residual.map(|r| r.0))
            .view_or_null(job.bias);
        let p = p.view_or_null(job.ids.as_ref().map(|c| c.ids));
        let p = self
            .weight_params(p, job.w)
            .long(job.stride)
            .long(job.n as i64)
            .long(job.residual.map_or(0, |r| r.1));
        let p = p.int(job.m).int(job.n).int(job.k).int(code(job.x.dtype));
        let p = p.int(job.bias.map_or(0, |b| code(b.dtype)));
        let p = match &job.ids {
            Some(c) => p.int(code(c.ids.dtype)).int(c.experts).int(c.choices).flag(c.shared),
            None => p.int(0).int(0).int(0).int(0),
        };
        let p = p.view_or_null(job.norm.map(|n| n.0)).int(job.norm.map_or(0, |n| code(n.0.dtype)));
        p.float(job.norm.map_or(0.0, |n| n.1)).flag(staged).int(0)
    }

    /// Blocks that share the rows of a weight out, so that each multiprocessor has two.
    fn share(&self, n: usize, rows: usize) -> usize {
        let room = 2 * self.ctx.facts.multiprocessors as usize;
        n.div_ceil(16).min(room.div_ceil(rows).max(1))
    }

    fn multiply(&mut self, job: &Job<'_>) -> Result<()> {
        let any_order = !self.ctx.exact;
        if any_order
            && (self.multiply_grouped(job)?
                || self.multiply_many(job)?
                || self.multiply_streamed(job, None)?)
        {
            return Ok(());
        }
        let p = self.linear_params(job, job.staged() > 0);
        match product(job) {
            Product::Rows(dtype) => {
                let name = match dtype {
                    DType::F32 => "linear_rows_f32",
                    DType::BF16 => "linear_rows_bf16",
                    _ => "linear_rows_f16",
                };
                let rows = if job.ids.is_some() { job.m } else { job.m.div_ceil(8) };
                self.launch(name, grid([job.n.div_ceil(8), rows, 1], 256, 0), p)
            }
            Product::Tensor(few, more) => {
                let (name, rows) = match (&job.ids, more) {
                    (Some(_), _) => (few, job.m),
                    (None, Some(more)) if job.m > 8 => (more, job.m.div_ceil(16)),
                    (None, _) => (few, job.m.div_ceil(8)),
                };
                let blocks = self.share(job.n, rows);
                self.launch(name, self.shape_for(job.w, grid([blocks, rows, 1], 256, job.staged())), p)
            }
        }
    }
}

/// What follows a product whose first half of columns are gates and whose second half are factors.
struct Gate {
    activation: u8,
    /// The slices and the node that multiplies them, which is `end`.
    nodes: [usize; 3],
    end: usize,
}

/// The gate that a product ends in, if nothing else reads it.
fn gate(frame: &Frame<'_>, index: usize) -> Option<Gate> {
    let [a, b] = frame.readers[index][..] else { return None };
    let (nodes, alone) = (frame.graph.nodes(), |i: usize| match frame.readers[i][..] {
        [reader] if frame.uses[i][0] == 1 => Some(reader),
        _ => None,
    });
    let end = alone(a).filter(|end| alone(b) == Some(*end) && frame.uses[index][0] == 2)?;
    let last = nodes[index].types[0].rank() - 1;
    let width = nodes[index].types[0].shape[last].as_fixed()?;
    let start = |i: usize| match &nodes[i].op {
        Op::Slice { axis, start, end, step: 1 } if *axis == last => {
            let (start, end) = (start.as_fixed()?, end.as_fixed()?);
            (2 * (end - start) == width).then_some(start)
        }
        _ => None,
    };
    let (activation, gate, factor) = gated(nodes[end].regions.first()?)?;
    let [gate, factor] = [gate, factor].map(|i| nodes[end].inputs[i].node as usize);
    let fits = start(gate)? == 0
        && start(factor)? == width / 2
        && matches!(nodes[index].op, Op::Linear { bias: false });
    fits.then_some(Gate { activation, nodes: [a, b, end], end })
}

/// Which matrix of a stack each row takes.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    ids: &'a View,
    pub(super) experts: usize,
    pub(super) choices: usize,
    shared: bool,
}

/// A product to be made.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) x: &'a View,
    pub(super) stride: i64,
    pub(super) out: &'a View,
    pub(super) w: &'a Matrix,
    pub(super) bias: Option<&'a View>,
    pub(super) ids: Option<Chosen<'a>>,
    /// Added to the rounded result, with the distance of its rows.
    pub(super) residual: Option<(&'a View, i64)>,
    /// Rows are normed with this weight first.
    pub(super) norm: Option<(&'a View, f64)>,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Bytes that rows may take in shared memory, so that two blocks find room.
const STAGED_MAX: usize = 96 << 10;

impl Job<'_> {
    /// Bytes of shared memory for the rows that a block multiplies; zero if they stay where they are.
    fn staged(&self) -> usize {
        let rows = if self.ids.is_some() { 1 } else { self.m.min(if self.m <= 8 { 8 } else { 16 }) };
        let bytes = rows * (self.k + 32) * 2;
        let tensor = matches!(product(self), Product::Tensor(..));
        if tensor && bytes <= STAGED_MAX { bytes } else { 0 }
    }
}

pub(super) fn product(job: &Job<'_>) -> Product {
    let dtype = job.x.dtype;
    let aligned = job.k.is_multiple_of(8) && job.stride % 8 == 0 && job.x.offset % 8 == 0;
    if !matches!(dtype, DType::BF16 | DType::F16) || !aligned {
        return Product::Rows(dtype);
    }
    let brain = dtype == DType::BF16;
    let (few, more) = match job.w.dtype {
        DType::BF16 if brain => names!("bf16_plain", 16),
        DType::F16 if !brain => names!("f16_plain", 16),
        DType::Quant(QuantFormat::Affine { bits, group, .. }) if brain && group % 32 == 0 => match bits {
            2 => names!("bf16_affine2"),
            3 => names!("bf16_affine3"),
            4 => names!("bf16_affine4", 16),
            5 => names!("bf16_affine5"),
            6 => names!("bf16_affine6"),
            _ => names!("bf16_affine8"),
        },
        DType::Quant(QuantFormat::MxFp4) if brain => names!("bf16_mxfp4"),
        _ if brain => names!("bf16_any"),
        _ => names!("f16_any"),
    };
    Product::Tensor(few, more)
}
