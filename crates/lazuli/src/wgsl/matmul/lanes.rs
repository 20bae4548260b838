//! Sums of products of few rows (GEMV), which several invocations share: each takes its part of k, straight from memory,
//! and they add up what they have through workgroup memory. Neighbours read vectors that lie side by side: along a column
//! of stored weights, or along a row of others.

use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, ShaderType, named, word};
use super::variants::{Read, Variant};
use super::{MatmulShader, stride_in_fours};

impl MatmulShader<'_> {
    /// Sums of products along k: `all0_0`, `all1_0`, …, complete where `k_lane` is 0.
    pub fn write_lane_sums(&self, shader: &mut Shader, lanes: usize) {
        let [start, end] = self.write_range(shader);
        let trip = self.shape.k_trip();
        let rest = !self.matmul.k.is_multiple_of(trip);
        let whole = match rest {
            true => &start + (&end - &start) / trip * trip,
            false => end.clone(),
        };
        let whole = shader.define("k_whole", whole);
        self.write_vectors(shader);
        self.declare(shader, &self.values("all"));
        let k_lane = word("k_lane");
        let n_trips = self.k_len().div_ceil(trip * lanes);
        shader.open_for("k", start + &k_lane * trip, &whole, trip * lanes, n_trips);
        self.write_trip(shader);
        shader.close();
        if rest {
            let k = shader.open_for("k", whole + k_lane, end, lanes, (trip - 1).div_ceil(lanes));
            let y = self.columns(shader, &k);
            let y = shader.define("y", y);
            for r in 0..self.shape.variant.rows {
                let x = self.a_element(shader, r, &k);
                shader.add_to(&self.value("all", r, 0), x * &y);
            }
            shader.close();
        }
        self.write_tree(shader, lanes);
    }

    /// Where vectors lie, counted in vectors: rows of `a` and columns of `b` along k, or rows of `b`.
    fn write_vectors(&self, shader: &mut Shader) {
        if self.shape.a == Read::AlongK {
            for r in 0..self.shape.variant.rows {
                shader.define(format!("a_from{r}"), word(format!("a{r}")) >> self.log_vector(0));
            }
        }
        match self.shape.b {
            Read::AlongK => {
                for j in 0..4 {
                    let column = self.beside(shader, &word("b0"), j);
                    shader.define(format!("b_from{j}"), column >> self.log_vector(1));
                }
            }
            Read::Across => {
                shader.define("b_from", word("b0") >> 2);
                let by = self.matmul.b.rows.stride().unwrap_or(0);
                shader.signed_param("b_row_fours", by / 4);
            }
            Read::Each => {}
        }
    }

    /// The logarithm of how many elements are read at once.
    fn log_vector(&self, input: usize) -> usize {
        if self.shape.eights[input] { 3 } else { 2 }
    }

    /// The products of one trip, all of whose loads come first.
    fn write_trip(&self, shader: &mut Shader) {
        let &Variant { rows, .. } = self.shape.variant;
        let (k, n_fours) = (word("k"), self.shape.k_trip() / 4);
        shader.define("k_four", &k >> 2);
        if self.shape.b == Read::AlongK {
            for j in 0..4 {
                self.write_along_k(shader, 1, &format!("b_from{j}"), &[format!("w0_{j}"), format!("w1_{j}")]);
            }
        } else {
            for i in 0..self.shape.k_trip() {
                let value = self.columns(shader, &k.plus(i));
                shader.define(format!("y{}_{}", i / 4, i % 4), value);
            }
        }
        for r in 0..rows {
            if self.shape.a == Read::AlongK {
                self.write_along_k(shader, 0, &format!("a_from{r}"), &[format!("x0_{r}"), format!("x1_{r}")]);
                continue;
            }
            for f in 0..n_fours {
                let each = [0, 1, 2, 3].map(|i| self.a_element(shader, r, &k.plus(4 * f + i)));
                shader.define(format!("x{f}_{r}"), ShaderType::four(self.lane).make(each));
            }
        }
        let four = |name: String| named(name, ShaderType::four(self.lane));
        for f in 0..n_fours {
            for i in 0..4 {
                let y = match self.shape.b {
                    Read::AlongK => {
                        let each = [0, 1, 2, 3].map(|j| four(format!("w{f}_{j}")).component(i));
                        shader.define(format!("y{f}_{i}"), ShaderType::four(self.lane).make(each))
                    }
                    _ => four(format!("y{f}_{i}")),
                };
                for r in 0..rows {
                    shader.add_to(&self.value("all", r, 0), four(format!("x{f}_{r}")).component(i) * &y);
                }
            }
        }
    }

    /// Reads the fours of one trip from where they start, counted in vectors, to these names.
    fn write_along_k(&self, shader: &mut Shader, input: usize, from: &str, names: &[String; 2]) {
        let from = word(from);
        if self.shape.eights[input] {
            let halves = self.memory.load_eight(shader, input, from + (word("k") >> 3));
            for (name, four) in names.iter().zip(halves) {
                shader.define(name, four.reinterpreted(self.lane));
            }
            return;
        }
        for (f, name) in names.iter().enumerate().take(self.shape.k_trip() / 4) {
            let four = self.memory.load_four(shader, input, &from + word("k_four").plus(f));
            shader.define(name, four.reinterpreted(self.lane));
        }
    }

    /// An element of a row of `a`.
    fn a_element(&self, shader: &mut Shader, r: usize, k: &ShaderExpr) -> ShaderExpr {
        let by = self.matmul.a.cols.stride().unwrap_or(1);
        let at = word(format!("a{r}")) + k * shader.signed_param("a_col", by);
        self.memory.load(shader, 0, at).reinterpreted(self.lane)
    }

    /// Four columns of `b` at one step.
    fn columns(&self, shader: &mut Shader, k: &ShaderExpr) -> ShaderExpr {
        if self.shape.b == Read::Across {
            let at = word("b_from") + k * self.number("b_row_fours");
            return self.memory.load_four(shader, 1, at).reinterpreted(self.lane);
        }
        let by = self.matmul.b.rows.stride().unwrap_or(1);
        let first = word("b0") + k * shader.signed_param("b_row", by);
        let each = [0, 1, 2, 3].map(|j| {
            let at = self.beside(shader, &first, j);
            self.memory.load(shader, 1, at).reinterpreted(self.lane)
        });
        ShaderType::four(self.lane).make(each)
    }

    /// Where column `j` of a four is, whose first is here.
    fn beside(&self, shader: &mut Shader, first: &ShaderExpr, j: usize) -> ShaderExpr {
        match (j, stride_in_fours(&self.matmul.b.cols)) {
            (0, _) => first.clone(),
            (_, Some(by)) => first + shader.signed_param("b_col", by).times(j),
            (_, None) => first + word(format!("b0_side{j}")),
        }
    }

    /// Adds up what the invocations have that share a tile; the first of them gets it.
    fn write_tree(&self, shader: &mut Shader, lanes: usize) {
        let target = self.context.target;
        let (group, at_once) = (self.shape.variant.group(target), self.shape.variant.values_at_once(target));
        let shared = shader.shared_rows("sh_sums", [at_once, group], self.value_type());
        let (lane, n_beside) = (word("lane"), group / lanes);
        let values = self.values("all");
        for (i, values) in values.chunks(at_once).enumerate() {
            if i > 0 {
                // The memory is free for the next.
                shader.barrier();
            }
            values.iter().enumerate().for_each(|(v, value)| shader.assign(&shared.at(v).at(&lane), value));
            // What everyone has is there.
            shader.barrier();
            for level in (0..lanes.ilog2()).rev() {
                let half = 1 << level;
                shader.open_if(word("k_lane").less(half));
                for v in 0..values.len() {
                    let row = shared.at(v);
                    shader.add_to(&row.at(&lane), row.at(&lane + half * n_beside));
                }
                shader.close();
                shader.barrier();
            }
            values.iter().enumerate().for_each(|(v, value)| shader.assign(value, shared.at(v).at(&lane)));
        }
    }
}
