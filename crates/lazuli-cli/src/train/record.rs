//! What happened so far: curves, kept with the checkpoint so that a resumed run draws one line.

use lazuli::{Device, Result, Tensor};

/// What was measured after an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    pub epoch: u64,
    pub loss: f32,
    pub train_accuracy: f32,
    pub test_accuracy: f32,
    pub images_per_second: f32,
}

/// The curves of a run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The loss of every step.
    pub losses: Vec<f32>,
    pub epochs: Vec<Epoch>,
    /// Sums of loss and accuracy over this epoch, and of how many images.
    sums: [f32; 3],
}

impl Record {
    /// One more step: the sums of loss and accuracy over its images, and of how many images.
    pub fn step(&mut self, [loss, accuracy, n]: [f32; 3]) {
        self.losses.push(loss / n.max(1.0));
        self.sums = [self.sums[0] + loss, self.sums[1] + accuracy, self.sums[2] + n];
    }

    fn means(&self) -> [f32; 2] {
        let n = self.sums[2].max(1.0);
        [self.sums[0] / n, self.sums[1] / n]
    }

    /// How this epoch goes, for the progress bar.
    pub fn now(&self) -> String {
        let [loss, accuracy] = self.means();
        format!("loss {loss:.4} · accuracy {:.2} %", 100.0 * accuracy)
    }

    /// The epoch is over.
    pub fn end_epoch(&mut self, epoch: u64, test_accuracy: f64, images_per_second: f64) {
        let [loss, train_accuracy] = self.means();
        let (test_accuracy, images_per_second) = (test_accuracy as f32, images_per_second as f32);
        self.epochs.push(Epoch { epoch, loss, train_accuracy, test_accuracy, images_per_second });
        self.sums = [0.0; 3];
    }

    /// The last epoch in words.
    pub fn last_line(&self) -> String {
        let line = |e: &Epoch| {
            format!(
                "epoch {}: loss {:.4}, train accuracy {:.2} %, test accuracy {:.2} %, {:.0} images/s",
                e.epoch,
                e.loss,
                100.0 * e.train_accuracy,
                100.0 * e.test_accuracy,
                e.images_per_second
            )
        };
        self.epochs.last().map(line).unwrap_or_default()
    }

    /// One line an epoch.
    pub fn csv(&self) -> String {
        let mut out = String::from("epoch,loss,train_accuracy,test_accuracy,images_per_second\n");
        for e in &self.epochs {
            out += &format!(
                "{},{},{},{},{:.0}\n",
                e.epoch, e.loss, e.train_accuracy, e.test_accuracy, e.images_per_second
            );
        }
        out
    }

    /// As tensors for the checkpoint.
    pub fn named(&self, device: &Device) -> Vec<(String, Tensor)> {
        let rows: Vec<f32> = (self.epochs.iter())
            .flat_map(|e| [e.epoch as f32, e.loss, e.train_accuracy, e.test_accuracy, e.images_per_second])
            .collect();
        vec![
            ("train.losses".into(), Tensor::from_slice(&self.losses, [self.losses.len()], device)),
            ("train.epochs".into(), Tensor::from_slice(&rows, [self.epochs.len(), 5], device)),
            ("train.sums".into(), Tensor::from_slice(&self.sums, [3], device)),
        ]
    }

    /// From a checkpoint; what is not there is empty.
    pub fn load(find: impl Fn(&str) -> Option<Tensor>) -> Result<Record> {
        let numbers = |name: &str| find(name).map_or(Ok(Vec::new()), |t| t.to_vec::<f32>());
        let epoch = |row: &[f32; 5]| Epoch {
            epoch: row[0] as u64,
            loss: row[1],
            train_accuracy: row[2],
            test_accuracy: row[3],
            images_per_second: row[4],
        };
        Ok(Record {
            losses: numbers("train.losses")?,
            epochs: numbers("train.epochs")?.as_chunks::<5>().0.iter().map(epoch).collect(),
            sums: numbers("train.sums")?.try_into().unwrap_or_default(),
        })
    }
}
