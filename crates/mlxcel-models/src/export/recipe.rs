//! How a new tensor is made of stored ones: which tensors end to end, seen with which strides, and what is done to
//! each number. Data only; `rows` carries it out.

/// A new tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    pub origin: Origin,
    pub map: Map,
}

/// Where its numbers come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// Stored tensors of one shape, end to end, and a view of their elements.
    Stored {
        files: Vec<String>,
        each: Vec<usize>,
        view: View,
    },
    Numbers(Vec<f32>),
}

/// Element `[i, j, …]` of the new tensor is element `offset + i * strides[0] + j * strides[1] + …` of the stored ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
    pub offset: usize,
}

/// What is done to each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    Keep,
    PlusOne,
    MinusOne,
    /// `-exp(x)`
    NegExp,
    /// `ln(-x)`
    LnNeg,
}

impl View {
    /// Everything in the order it is stored.
    pub fn whole(shape: &[usize]) -> View {
        let mut strides = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i];
        }
        View { dims: shape.to_vec(), strides, offset: 0 }
    }

    pub fn is_whole(&self) -> bool {
        self.offset == 0 && self.strides == View::whole(&self.dims).strides
    }

    /// Rows of `cols` elements, `dims` of them with `strides` counted in rows.
    pub fn of_rows(dims: &[usize], strides: &[usize], cols: Option<usize>) -> View {
        let width = cols.unwrap_or(1);
        let mut dims = dims.to_vec();
        let mut strides: Vec<usize> = strides.iter().map(|s| s * width).collect();
        if let Some(cols) = cols {
            dims.push(cols);
            strides.push(1);
        }
        View { dims, strides, offset: 0 }
    }

    pub fn at(self, offset: usize) -> View {
        View { offset, ..self }
    }
}

impl Map {
    pub fn apply(self, values: &mut [f32]) {
        match self {
            Map::Keep => {}
            Map::PlusOne => values.iter_mut().for_each(|v| *v += 1.0),
            Map::MinusOne => values.iter_mut().for_each(|v| *v -= 1.0),
            Map::NegExp => values.iter_mut().for_each(|v| *v = -v.exp()),
            Map::LnNeg => values.iter_mut().for_each(|v| *v = (-*v).ln()),
        }
    }
}

impl Recipe {
    /// A stored tensor as it is.
    pub fn keep(name: &str, file: &str, shape: &[usize]) -> Recipe {
        let view = View::whole(shape);
        let origin = Origin::Stored { files: vec![file.to_string()], each: shape.to_vec(), view };
        Recipe { name: name.to_string(), shape: shape.to_vec(), origin, map: Map::Keep }
    }

    pub fn numbers(name: &str, values: Vec<f32>) -> Recipe {
        let shape = vec![values.len()];
        Recipe { name: name.to_string(), shape, origin: Origin::Numbers(values), map: Map::Keep }
    }

    /// The same elements seen otherwise. Only for a recipe whose view is still whole.
    pub fn viewed(mut self, name: String, shape: Vec<usize>, seen: View) -> Recipe {
        if let Origin::Stored { view, .. } = &mut self.origin {
            assert!(view.is_whole(), "'{}' is rearranged twice", self.name);
            let elements = |dims: &[usize]| dims.iter().product::<usize>();
            assert_eq!(elements(&seen.dims), elements(&shape), "'{name}' has as many elements as its view");
            *view = seen;
        }
        Recipe { name, shape, ..self }
    }
}
