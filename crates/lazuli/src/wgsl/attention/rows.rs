//! What becomes of rows whose columns are all done: the maps over results and rows, or what a part leaves for the dispatch
//! that puts parts together.

use super::super::Pass;
use super::super::index::Spot;
use super::super::launch_memory::LaunchMemory;
use super::super::map::side_by_side;
use super::super::shader::Shader;
use super::super::tree::{ShaderExpr, call, select, word};
use super::scores::exponential;
use super::{ChainedMap, ChainedShader, FLOAT, batch_names, four, least, one};
use crate::dtype::Lane;
use crate::kernel::{Body, Inst, InstOp, ROW_MAX, ROW_PRODUCT, ROW_SHIFT, ROW_SUM};

/// Rows whose results are written out one after another; an invocation that has more goes round so many at a time.
const ROWS_AT_ONCE: usize = 4;
/// Invocations of a workgroup that puts parts together.
const COMBINE_GROUP: usize = 64;

/// What a row is when all its columns are done.
#[derive(Clone)]
struct RowValues {
    shift: ShaderExpr,
    max: ShaderExpr,
    sum: ShaderExpr,
}

fn max(x: ShaderExpr, y: ShaderExpr) -> ShaderExpr {
    let ty = x.ty();
    call("max", [x, y], ty)
}

impl ChainedShader<'_> {
    /// Writes the results of this invocation's rows and values.
    pub fn write_rows(&self, shader: &mut Shader, memory: &LaunchMemory) {
        let has_softmax = self.kernel.softmax.is_some();
        if has_softmax {
            self.write_across(shader, "sum", "+", 1);
        }
        let n = self.tiles.rows;
        let fours = |r: usize| (0..self.tiles.value_fours).map(|c| four("out", r, c)).collect();
        let state = |r: usize| if has_softmax { [one("max", r), one("sum", r)] } else { [FLOAT.zero(), FLOAT.zero()] };
        if n <= ROWS_AT_ONCE {
            for r in 0..n {
                self.write_own_row(shader, memory, r, word("row").plus(r), state(r), fours(r));
            }
            return;
        }
        // llvmpipe compiles every store to a loop over invocations. With 64 stores written out, attention of 32 rows took 1.3
        // times as long to compile.
        let first = shader.open_for("first_row", 0, n, ROWS_AT_ONCE, n.div_ceil(ROWS_AT_ONCE));
        for r in 0..ROWS_AT_ONCE {
            let mut chosen = |name: String, of_row: &dyn Fn(usize) -> ShaderExpr| {
                let others = (r + ROWS_AT_ONCE..n).step_by(ROWS_AT_ONCE);
                let all = others.fold(of_row(r), |all, i| select(all, of_row(i), first.equals(i - r)));
                shader.define(name, all)
            };
            let state = match has_softmax {
                true => [0, 1].map(|i| chosen(format!("{}_of{r}", ["max", "sum"][i]), &|row| state(row)[i].clone())),
                false => state(r),
            };
            let products = (0..self.tiles.value_fours)
                .map(|c| chosen(format!("out{c}_of{r}"), &|row| four("out", row, c)))
                .collect();
            let row = (word("row") + &first).plus(r);
            self.write_own_row(shader, memory, r, row, state, products);
        }
        shader.close();
    }

    /// Writes the results of one of this invocation's rows, from its greatest score, the sum of its weights, and fours of products.
    fn write_own_row(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        r: usize,
        row: ShaderExpr,
        [max_score, sum]: [ShaderExpr; 2],
        products: Vec<ShaderExpr>,
    ) {
        let is_first = word("side").equals(0).and(word("value_tile").equals(0));
        let row = shader.define(format!("own_row{r}"), row);
        shader.open_if(row.less(word("params.n_rows")));
        let shift = match self.kernel.softmax {
            Some(_) => shader.define(format!("last_shift{r}"), max(max_score.clone(), least())),
            None => FLOAT.zero(),
        };
        let values = RowValues { shift, max: max_score, sum };
        let row_idx = shader.define(format!("row_idx{r}"), word("batch") * word("params.n_rows") + &row);
        let of_row = match self.args.column_parts.count() {
            1 => self.values_of_row(shader, memory, &row_idx, &values, &format!("_o{r}")),
            _ => Vec::new(),
        };
        for (c, product) in products.into_iter().enumerate() {
            let value = word(format!("value{c}"));
            if self.tiles.values_by_four && self.args.column_parts.is_whole() {
                shader.open_if(value.less(word("params.n_values")));
                self.write_result(
                    shader,
                    memory,
                    [&row, &row_idx, &value],
                    product,
                    of_row.clone(),
                    &format!("_o{r}_{c}"),
                );
                shader.close();
                continue;
            }
            for k in 0..4 {
                let value = shader.define(format!("value{r}_{c}_{k}"), value.plus(k));
                shader.open_if(value.less(word("params.n_values")));
                let (product, suffix) = (product.component(k), format!("_o{r}_{c}_{k}"));
                match self.args.column_parts.count() {
                    1 => {
                        let at = [&row, &row_idx, &value];
                        self.write_result(shader, memory, at, product, of_row.clone(), &suffix);
                    }
                    _ => {
                        let at = self.part_at(shader, &word("part"), &row_idx) * word("params.n_values") + value;
                        memory.store(shader, self.scratch_idx(), at, product);
                    }
                }
                shader.close();
            }
        }
        // Most chained products store nothing for a row but its products, and then the branch would be empty.
        if self.args.column_parts.is_whole() && self.rows.body.stores.is_empty() {
            shader.close();
            return;
        }
        shader.open_if(is_first);
        match self.args.column_parts.count() {
            1 => self.write_row(shader, memory, [&row, &row_idx], &values, &format!("_w{r}")),
            _ => {
                let at = self.part_at(shader, &word("part"), &row_idx);
                let at = shader.define(format!("part_at{r}"), at);
                let [maxima, sums] = self.state_starts(shader);
                memory.store(shader, self.scratch_idx(), &at + maxima, values.max);
                memory.store(shader, self.scratch_idx(), at + sums, values.sum);
            }
        }
        shader.close();
        shader.close();
    }

    /// The row of a part, counted through all parts.
    fn part_at(&self, shader: &mut Shader, part: &ShaderExpr, row_idx: &ShaderExpr) -> ShaderExpr {
        part * shader.param("n_all_rows", self.n_all_rows()) + row_idx
    }

    /// Where the greatest scores and the sums of weights start in scratch memory, behind the sums of products.
    fn state_starts(&self, shader: &mut Shader) -> [ShaderExpr; 2] {
        let n_rows = self.args.column_parts.count() * self.n_all_rows();
        let first = n_rows * self.args.n_values;
        [shader.param("maxima_start", first), shader.param("sums_start", first + n_rows)]
    }

    /// Evaluates the registers of the epilogue that do not vary along a row, once a row (loop-invariant code motion). Each store is in
    /// a branch of its own, and an exponential and a reciprocal in every branch made the shader slower to compile.
    fn values_of_row(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        row_idx: &ShaderExpr,
        values: &RowValues,
        suffix: &str,
    ) -> Vec<Option<ShaderExpr>> {
        let mut eval = self.result.eval(memory, Spot::new(row_idx.clone(), suffix));
        eval.values = given(&self.result.body, values);
        let body = &self.result.body;
        let is_of_row = of_rows(body);
        let needed = eval.missing(body.stores.iter().map(|store| store.value));
        eval.need(shader, needed.into_iter().filter(|reg| is_of_row[*reg as usize]));
        eval.values
    }

    /// Writes the epilogue of one element of the result, or of four neighbours, and its store. `known` are the registers of the epilogue
    /// that have a value already, such as those that are the same for a whole row.
    fn write_result(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        [row, row_idx, value]: [&ShaderExpr; 3],
        product: ShaderExpr,
        mut known: Vec<Option<ShaderExpr>>,
        suffix: &str,
    ) {
        let at = shader.define(format!("i{suffix}"), row_idx * word("params.n_values") + value);
        let along = product.is_four().then_some(self.args.batch.len() + 1);
        let coordinates = side_by_side(self.coordinates(&[row, value]), along);
        let spot = Spot { coordinates, ..Spot::new(at, suffix) };
        for (value, inst) in known.iter_mut().zip(&self.result.body.insts) {
            if inst.op == InstOp::Acc(ROW_PRODUCT) {
                *value = Some(product.clone());
            }
        }
        write_map(&self.result, shader, memory, spot, known);
    }

    /// What becomes of a row.
    fn write_row(
        &self,
        shader: &mut Shader,
        memory: &LaunchMemory,
        [row, row_idx]: [&ShaderExpr; 2],
        values: &RowValues,
        suffix: &str,
    ) {
        let spot = Spot { coordinates: vec![self.coordinates(&[row])], ..Spot::new(row_idx.clone(), suffix) };
        write_map(&self.rows, shader, memory, spot, given(&self.rows.body, values));
    }

    fn coordinates(&self, last: &[&ShaderExpr]) -> Vec<ShaderExpr> {
        let batch = batch_names(self.args.batch.len()).into_iter().map(word);
        batch.chain(last.iter().map(|e| (*e).clone())).collect()
    }

    /// The dispatch that puts the parts of each value of a row together, from the first to the last.
    pub fn combine_pass(&self, memory: &LaunchMemory) -> Pass {
        let group = COMBINE_GROUP.min(self.target.max_invocations);
        let mut shader = self.shader(group);
        let n_elems = self.n_all_rows() * self.args.n_values;
        let [n_rows, n_values, end] =
            [("n_rows", self.args.n_rows), ("n_values", self.args.n_values), ("end", n_elems)]
                .map(|(name, n)| shader.param(name, n));
        let i = shader.count_groups() * group + word("lane");
        let i = shader.define("i", i);
        shader.return_if(i.at_least(end));
        let row_idx = shader.define("row_idx", &i / &n_values);
        let value = shader.define("value", i % n_values);
        shader.define("batch", &row_idx / &n_rows);
        let row = shader.define("row", &row_idx % n_rows);
        self.write_batch(&mut shader);
        let n_parts = shader.param("n_parts", self.args.column_parts.count());
        let [maxima, sums] = self.state_starts(&mut shader);
        let scratch = self.scratch_idx();
        let shift = |shader: &mut Shader, part: &ShaderExpr| {
            let at = self.part_at(shader, part, &row_idx);
            let found = memory.load(shader, scratch, at + &maxima);
            shader.define("found", found)
        };
        let all = shader.variable("all", FLOAT.zero());
        let total = shader.variable("total", FLOAT.zero());
        let mut values = RowValues { shift: FLOAT.zero(), max: FLOAT.zero(), sum: total.clone() };
        if self.kernel.softmax.is_some() {
            let greatest = shader.param("minus_infinity", f32::NEG_INFINITY.to_bits() as usize);
            let greatest = shader.variable("greatest", greatest.reinterpreted(Lane::F32));
            let part = shader.open_for("part", 0, &n_parts, 1, self.args.column_parts.count());
            let found = shift(&mut shader, &part);
            shader.assign(&greatest, max(greatest.clone(), found));
            shader.close();
            values.shift = shader.define("shift", max(greatest.clone(), least()));
            values.max = greatest;
        }
        let part = shader.open_for("part", 0, n_parts, 1, self.args.column_parts.count());
        let at = self.part_at(&mut shader, &part, &row_idx);
        let at = shader.define("at", at);
        let product = memory.load(&mut shader, scratch, &at * word("params.n_values") + &value);
        match self.kernel.softmax {
            Some(exp) => {
                let found = shift(&mut shader, &part);
                let scale = exponential(&mut shader, exp, max(found, least()) - &values.shift);
                let scale = shader.define("scale", scale);
                shader.add_to(&all, product * &scale);
                let sum = memory.load(&mut shader, scratch, at + sums);
                shader.add_to(&total, sum * scale);
            }
            None => shader.add_to(&all, product),
        }
        shader.close();
        let of_row = given(&self.result.body, &values);
        self.write_result(&mut shader, memory, [&row, &row_idx, &value], all, of_row, "_o");
        shader.open_if(value.equals(0));
        self.write_row(&mut shader, memory, [&row, &row_idx], &values, "_w");
        shader.close();
        shader.finish(self.label(), memory, n_elems.div_ceil(group))
    }
}

/// The registers of a map that are known once a row is finished: the greatest score, the shift that is subtracted from scores, and the sum.
fn given(body: &Body, values: &RowValues) -> Vec<Option<ShaderExpr>> {
    let value = |inst: &Inst| match inst.op {
        InstOp::Acc(ROW_SHIFT) => Some(values.shift.clone()),
        InstOp::Acc(ROW_MAX) => Some(values.max.clone()),
        InstOp::Acc(ROW_SUM) => Some(values.sum.clone()),
        _ => None,
    };
    body.insts.iter().map(value).collect()
}

/// For each register whether it depends only on numbers of the launch and of a row, and not on the value's place in the row.
fn of_rows(body: &Body) -> Vec<bool> {
    let mut of_rows: Vec<bool> = Vec::with_capacity(body.insts.len());
    for inst in &body.insts {
        let own = match inst.op {
            InstOp::Acc(number) => number != ROW_PRODUCT,
            InstOp::Load { .. } | InstOp::Valid { .. } | InstOp::Index { .. } | InstOp::Gather { .. } => false,
            InstOp::Failed | InstOp::Reduce(..) => false,
            InstOp::Const(_) | InstOp::Unary(..) | InstOp::Binary(..) => true,
            InstOp::Select(..) | InstOp::Cast(_) | InstOp::Custom(..) => true,
        };
        let mut all = own;
        inst.op.for_each_reg(|reg| all &= of_rows[reg as usize]);
        of_rows.push(all);
    }
    of_rows
}

/// Evaluates a map over results or rows at a spot, given the registers that are `known`, and stores the results.
fn write_map(map: &ChainedMap, shader: &mut Shader, memory: &LaunchMemory, spot: Spot, known: Vec<Option<ShaderExpr>>) {
    let mut eval = map.eval(memory, spot);
    eval.values = known;
    eval.need(shader, map.body.stores.iter().map(|store| store.value));
    map.body.stores.iter().for_each(|store| eval.store(shader, store));
}
