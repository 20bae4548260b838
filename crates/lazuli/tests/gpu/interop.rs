//! Sharing devices, buffers and encoders with an application.

use lazuli::gpu::{self, wgpu};
use lazuli::{Batch, DType, Device, Error, Tensor};

use crate::{adapter, alone, block_on, gpus, own, own_of};

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

fn buffer_of(numbers: &[f32], device: &wgpu::Device, queue: &wgpu::Queue) -> wgpu::Buffer {
    let size = numbers.len() as u64 * 4;
    let desc = wgpu::BufferDescriptor { label: None, size, usage: USAGE, mapped_at_creation: false };
    let buffer = device.create_buffer(&desc);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    queue.write_buffer(&buffer, 0, &bytes);
    buffer
}

#[test]
fn a_device_of_the_application_computes() {
    let _turn = alone();
    let (_, _, gpu) = own(|_| {});
    let x = Tensor::arange(0.0, 100.0, 1.0, &gpu);
    assert_eq!(x.mul(2.0).to_vec::<f32>().unwrap()[99], 198.0);
    assert_eq!(x.mul(3.0).compute().unwrap().to_vec::<f32>().unwrap()[99], 297.0);
    // Without mapping, which this device was not asked for, results come along in the same submit, warm and for free.
    gpu.reset_stats();
    assert_eq!(x.mul(5.0).to_vec::<f32>().unwrap()[99], 495.0);
    let stats = gpu.stats();
    assert_eq!((stats.submits, stats.plans_compiled, stats.buffers_created), (1, 0, 0), "{stats:?}");
    // Read again, they are copied by themselves.
    let y = x.mul(7.0);
    assert_eq!(y.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
}

#[test]
fn a_buffer_is_a_tensor_without_a_copy() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let buffer = buffer_of(&[1.0, 2.0, 3.0, 4.0], &device, &queue);
        gpu.reset_stats();
        let x = gpu::from_buffer(buffer.clone(), [2, 2], DType::F32, &gpu).unwrap();
        assert_eq!(gpu::buffer(&x).unwrap(), buffer);
        assert_eq!(x.t().add(1.0).to_vec::<f32>().unwrap(), [2.0, 4.0, 3.0, 5.0]);
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(gpu.stats().bytes_uploaded, 0);
        // Even when nobody else holds the tensor, the application's memory is never written.
        x.reshape([4]).add(1.0).compute().unwrap();
        let y = x.mul(2.0);
        drop(x);
        assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);
        let again = gpu::from_buffer(buffer, [4], DType::F32, &gpu).unwrap();
        assert_eq!(again.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
}

#[test]
fn a_buffer_that_does_not_fit_is_refused() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let buffer = buffer_of(&[1.0; 4], &device, &queue);
        assert!(matches!(gpu::from_buffer(buffer.clone(), [5], DType::F32, &gpu), Err(Error::Shape(_))));
        assert!(matches!(gpu::from_buffer(buffer, [4], DType::F32, &Device::cpu()), Err(Error::Device(_))));
        let usage = wgpu::BufferUsages::UNIFORM;
        let desc = wgpu::BufferDescriptor { label: None, size: 16, usage, mapped_at_creation: false };
        let uniform = device.create_buffer(&desc);
        assert!(matches!(gpu::from_buffer(uniform, [4], DType::F32, &gpu), Err(Error::Device(_))));
    }
}

/// What must hold after a buffer was refused, now or when it was read: it was an error of that call alone.
fn goes_on(gpu: &Device, kept: &Tensor) {
    assert_eq!(kept.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(kept.add(1.0).to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
    gpu.sync().unwrap();
}

/// A tensor that no host copy stands behind: it would be gone if the device were.
fn computed(gpu: &Device) -> Tensor {
    Tensor::arange(1.0, 4.0, 1.0, gpu).compute().unwrap()
}

#[track_caller]
fn refused(result: lazuli::Result<Tensor>, words: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Device(_)), "{text}");
    assert!(words.iter().all(|word| text.to_lowercase().contains(word)), "{text}");
    assert!(text.contains("interop.rs"), "{text}");
}

#[test]
fn a_shape_that_no_tensor_has_is_refused() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let buffer = buffer_of(&[1.0; 4], &device, &queue);
        let huge: &[&[usize]] =
            &[&[1; 9], &[usize::MAX, 2], &[1 << 62], &[usize::MAX / 4 + 2], &[0, usize::MAX, usize::MAX]];
        for shape in huge {
            let error = gpu::from_buffer(buffer.clone(), *shape, DType::F32, &gpu).unwrap_err();
            assert!(matches!(error, Error::Shape(_)), "{error}");
            assert!(error.to_string().contains("interop.rs"), "{error}");
        }
        let nothing = gpu::from_buffer(buffer, [0, 3], DType::F32, &gpu).unwrap();
        assert_eq!(nothing.add(1.0).to_vec::<f32>().unwrap(), []);
        assert!(Batch::new(&gpu).import_buffer(buffer_of(&[1.0], &device, &queue), usize::MAX).is_err());
    }
}

#[test]
fn a_destroyed_buffer_is_refused_and_the_device_goes_on() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let kept = computed(&gpu);
        let buffer = buffer_of(&[1.0; 4], &device, &queue);
        buffer.destroy();
        refused(gpu::from_buffer(buffer.clone(), [4], DType::F32, &gpu), &["destroyed"]);
        assert!(matches!(Batch::new(&gpu).import_buffer(buffer, 4), Err(Error::Device(_))));
        goes_on(&gpu, &kept);
    }
}

#[test]
fn a_mapped_buffer_is_refused_until_it_is_unmapped() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, _) = gpu::handles(&gpu).unwrap();
        let kept = computed(&gpu);
        let desc = wgpu::BufferDescriptor { label: None, size: 16, usage: USAGE, mapped_at_creation: true };
        let buffer = device.create_buffer(&desc);
        refused(gpu::from_buffer(buffer.clone(), [4], DType::F32, &gpu), &["mapped"]);
        goes_on(&gpu, &kept);
        buffer.unmap();
        let x = gpu::from_buffer(buffer, [4], DType::F32, &gpu).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [0.0; 4]);
    }
}

#[test]
fn a_buffer_of_another_device_is_refused() {
    let _turn = alone();
    let adapter = adapter();
    let (_, _, gpu) = own_of(&adapter, |_| {});
    let (other, queue, _) = own_of(&adapter, |_| {});
    let kept = computed(&gpu);
    refused(gpu::from_buffer(buffer_of(&[1.0; 4], &other, &queue), [4], DType::F32, &gpu), &["device"]);
    goes_on(&gpu, &kept);
    // Of another instance, too, whose numbers for buffers are its own; no buffer here has this size.
    let (other, queue, _) = own(|_| {});
    for _ in 0..8 {
        let buffer = buffer_of(&[1.0; 1003], &other, &queue);
        let refused = gpu::from_buffer(buffer, [1003], DType::F32, &gpu);
        assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
        goes_on(&gpu, &kept);
    }
}

#[test]
fn a_buffer_destroyed_after_it_was_imported_is_an_error_of_what_reads_it() {
    let _turn = alone();
    let (_, _, shared) = own(|_| {});
    for gpu in gpus().into_iter().chain([shared]) {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let kept = computed(&gpu);
        let buffer = buffer_of(&[1.0; 3], &device, &queue);
        let x = gpu::from_buffer(buffer.clone(), [3], DType::F32, &gpu).unwrap();
        let y = x.mul(&kept);
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        let again = x.mul(&kept);
        buffer.destroy();
        for _ in 0..2 {
            for error in [again.to_vec::<f32>(), x.to_vec::<f32>(), x.sub(&kept).compute().and_then(|z| z.to_vec())] {
                assert!(matches!(error, Err(Error::Device(_))), "{error:?}");
            }
            assert!(matches!(block_on(x.neg().to_vec_async::<f32>()), Err(Error::Device(_))));
            goes_on(&gpu, &kept);
            assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        }
    }
}

#[test]
fn a_buffer_mapped_after_it_was_imported_is_an_error_until_it_is_unmapped() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, _) = gpu::handles(&gpu).unwrap();
        if !device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS) {
            continue;
        }
        let kept = computed(&gpu);
        let usage = USAGE | wgpu::BufferUsages::MAP_READ;
        let buffer =
            device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 12, usage, mapped_at_creation: false });
        let x = gpu::from_buffer(buffer.clone(), [3], DType::F32, &gpu).unwrap();
        buffer.map_async(wgpu::MapMode::Read, .., |_| ());
        // It is waited for or mapped: either way it is the host's.
        for _ in 0..2 {
            let error = x.add(&kept).to_vec::<f32>();
            assert!(matches!(error, Err(Error::Device(_))), "{error:?}");
            goes_on(&gpu, &kept);
        }
        buffer.unmap();
        assert_eq!(x.add(&kept).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    }
}

#[test]
fn work_is_recorded_into_the_callers_encoder() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let x = Tensor::arange(0.0, 1000.0, 1.0, &gpu).compute().unwrap();
        gpu.reset_stats();
        let y = x.mul(2.0);
        let z = y.add(1.0).sin().mul(0.0).add(&y);
        let mut encoder = device.create_command_encoder(&Default::default());
        gpu::encode(&[&y, &z], &mut encoder).unwrap();
        assert_eq!(gpu.stats().submits, 0);
        // Whatever runs in between must not take the memory that was recorded.
        drop(x);
        for i in 0..5 {
            Tensor::full([1000], i as f32, &gpu).compute().unwrap();
        }
        queue.submit([encoder.finish()]);
        let expected: Vec<f32> = (0..1000).map(|i| i as f32 * 2.0).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected);
        assert_eq!(z.to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn an_index_out_of_range_in_the_callers_encoder_is_told() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let table = Tensor::arange(0.0, 4.0, 1.0, &gpu).compute().unwrap();
        let picks = |at: i32| table.gather(0, &Tensor::from_slice(&[at], [1], &gpu)).mul(2.0);
        for (at, is_good) in [(3, true), (4, false)] {
            let y = picks(at);
            let mut encoder = device.create_command_encoder(&Default::default());
            gpu::encode(&[&y], &mut encoder).unwrap();
            queue.submit([encoder.finish()]);
            match y.to_vec::<f32>() {
                Ok(values) => assert!(is_good && values == [6.0]),
                Err(error) => assert!(!is_good && matches!(error, Error::Index(_)), "{error}"),
            }
        }
        // What is never submitted finds nothing, and keeps nobody waiting.
        let y = picks(9);
        let mut encoder = device.create_command_encoder(&Default::default());
        gpu::encode(&[&y], &mut encoder).unwrap();
        drop(encoder);
        assert!(block_on(y.to_vec_async::<f32>()).is_ok());
        gpu.sync().unwrap();
    }
}

#[test]
fn a_batch_imports_buffers() {
    let _turn = alone();
    for gpu in gpus() {
        let (device, queue) = gpu::handles(&gpu).unwrap();
        let mut batch = Batch::new(&gpu);
        let x = batch.import_buffer(buffer_of(&[1.0, -2.0, 3.0], &device, &queue), 3).unwrap();
        assert!(batch.import_buffer(buffer_of(&[1.0], &device, &queue), 3).is_err());
        let y = batch.relu(x);
        block_on(batch.execute()).unwrap();
        assert_eq!(block_on(batch.read(y)).unwrap(), [1.0, 0.0, 3.0]);
    }
}
