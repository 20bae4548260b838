//! A process that the system gives no more than so much memory: calls that need more return an error, and go on.
#![cfg(target_os = "linux")]

use std::process::Command;

use lazuli::{DType, Device, Error, Result, Tensor, Weights};

/// What a starved process may have, in KiB.
const LIMIT: usize = 450_000;
const MIB: usize = 1 << 20;

#[test]
fn a_starved_process_gets_errors() {
    let _turn = crate::refusing::alone();
    if let Ok(case) = std::env::var("LAZULI_TEST_STARVED") {
        let cpu = Device::cpu();
        let refused = starve(&case, &cpu);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{case}: {refused:?}");
        assert_eq!(Tensor::arange(0.0, 4.0, 1.0, &cpu).sort(0, true).to_vec::<f32>().unwrap(), [3.0, 2.0, 1.0, 0.0]);
        println!("refused and well");
        return;
    }
    for case in ["from_slice", "from_vec of i64", "upload", "bool", "sort", "compute"] {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {LIMIT} && exec \"$0\" \"$@\"")]);
        command.arg(program).args(["--exact", "starved::a_starved_process_gets_errors", "--nocapture"]);
        // Every thread's own arena would take memory that is only reserved.
        command.envs([("LAZULI_TEST_STARVED", case), ("LAZULI_THREADS", "2"), ("MALLOC_ARENA_MAX", "1")]);
        let run = command.output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && text.contains("refused and well"), "{case}: {}\n{text}\n{errors}", run.status);
    }
}

/// Asks for more than there is.
fn starve(case: &str, cpu: &Device) -> Result<()> {
    match case {
        "from_slice" => {
            let data = vec![1.0f32; 256 * MIB / 4];
            Tensor::from_slice(&data, [data.len()], cpu).check()
        }
        "from_vec of i64" => {
            let data = vec![1i64; 300 * MIB / 8];
            let n = data.len();
            Tensor::from_vec(data, [n], cpu).check()
        }
        "upload" => {
            let data = vec![1.0f32; 256 * MIB / 4];
            Weights::new(cpu).upload("w", &data, 8192, 8192)
        }
        "bool" => {
            let y = Tensor::zeros([160 * MIB], DType::U8, cpu).eq(0u8).compute()?;
            y.to_vec::<bool>().map(drop)
        }
        "sort" => {
            let y = Tensor::arange(0.0, 16e6, 1.0, cpu).compute()?;
            y.sort(0, true).compute().map(drop)
        }
        _ => Tensor::zeros([1 << 27], DType::F32, cpu).compute().map(drop),
    }
}
