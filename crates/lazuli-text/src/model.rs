//! A language model: network, tokenizer and chat template, from one file or one folder.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use lazuli::{Device, Result};
use lazuli_io::Gguf;

use crate::chat::Chat;
use crate::config::ModelConfig;
use crate::decoder::Decoder;
use crate::fault;
use crate::reply::Completion;
use crate::sampling::Sampling;
use crate::session::Session;
use crate::template::{CHATML, ChatTemplate, PLAIN};
use crate::tokenizer::Tokenizer;
use crate::weights::{WeightFiles, read_json};

/// A language model. Clones share its weights.
///
/// ```no_run
/// use lazuli::Device;
/// use lazuli_text::{LanguageModel, Sampling};
/// # fn main() -> Result<(), lazuli::Error> {
/// let model = LanguageModel::open("SmolLM2-135M-Instruct.Q4_1.gguf", &Device::best())?;
/// let mut chat = model.chat();
/// for piece in chat.say("What is the capital of France?", &Sampling::default()) {
///     print!("{}", piece?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LanguageModel(Arc<Loaded>);

struct Loaded {
    decoder: Decoder,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl LanguageModel {
    /// Opens a GGUF file, or a folder with `config.json`, `tokenizer.json` and safetensors.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>, device: &Device) -> Result<LanguageModel> {
        let _caller = fault::caller();
        LanguageModel::open_with(path, device, |_, _| {})
    }

    /// The same; `progress` is called with how many layers are loaded, and how many there are.
    #[track_caller]
    pub fn open_with(
        path: impl AsRef<Path>,
        device: &Device,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<LanguageModel> {
        let _caller = fault::caller();
        let path = path.as_ref();
        if path.is_dir() {
            return LanguageModel::from_folder(path, device, &mut progress);
        }
        LanguageModel::from_gguf(Gguf::open(path)?, device, &mut progress)
    }

    /// A model whose file is open already, or in memory.
    #[track_caller]
    pub fn from_gguf(file: Gguf, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<LanguageModel> {
        let _caller = fault::caller();
        let config = ModelConfig::from_gguf(&file)?;
        let tokenizer = Tokenizer::from_gguf(file.metadata())?;
        let template = file.metadata().find::<&str>("tokenizer.chat_template")?.map(String::from);
        let template = template_or_default(template, &tokenizer)?;
        let files = WeightFiles::Gguf(Box::new(file));
        let decoder = Decoder::load(&files, config, tokenizer.len(), device, progress)?;
        Ok(LanguageModel(Arc::new(Loaded { decoder, tokenizer, template })))
    }

    fn from_folder(folder: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<LanguageModel> {
        if !folder.join("config.json").exists() {
            let message =
                "a folder with a model has config.json, tokenizer.json and safetensors; otherwise name a GGUF file";
            return Err(fault::parse("model", format!("{}: there is no config.json: {message}", folder.display())));
        }
        let json = read_json(&folder.join("config.json"))?;
        let config = ModelConfig::from_json(&json)?;
        let beside = |name: &str| match folder.join(name) {
            path if path.exists() => read_json(&path).map(Some),
            _ => Ok(None),
        };
        let settings = beside("tokenizer_config.json")?.unwrap_or_default();
        let tokenizer = Tokenizer::from_json(&read_json(&folder.join("tokenizer.json"))?, &settings, &json)?;
        let own_template = folder.join("chat_template.jinja");
        let template = match std::fs::read_to_string(&own_template) {
            Ok(source) => Some(source),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                settings.get("chat_template").and_then(|template| template.as_str()).map(String::from)
            }
            Err(error) => return Err(fault::io("model", &own_template, &error)),
        };
        let template = template_or_default(template, &tokenizer)?;
        let n_tokens = json.get("vocab_size").and_then(|n| n.as_u64()).map_or(tokenizer.len(), |n| n as usize);
        let files = WeightFiles::safetensors(folder, device)?;
        let decoder = Decoder::load(&files, config, n_tokens, device, progress)?;
        Ok(LanguageModel(Arc::new(Loaded { decoder, tokenizer, template })))
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// How it reads conversations. A file without a template is read as ChatML if it has the tokens `<|im_start|>` and
    /// `<|im_end|>`, otherwise as lines that begin with `User:` and `Assistant:`.
    pub fn template(&self) -> &ChatTemplate {
        &self.0.template
    }

    /// Its network.
    pub fn decoder(&self) -> &Decoder {
        &self.0.decoder
    }

    /// Its network, to put adapters in; an error while a chat, a session or a clone uses the model.
    #[track_caller]
    pub fn decoder_mut(&mut self) -> Result<&mut Decoder> {
        let _caller = fault::caller();
        let in_use = || fault::unsupported("decoder_mut", "a chat, a session or a clone uses the model");
        Arc::get_mut(&mut self.0).map(|loaded| &mut loaded.decoder).ok_or_else(in_use)
    }

    /// A conversation with it. Several may go on at the same time.
    pub fn chat(&self) -> Chat {
        Chat::new(self.clone())
    }

    /// Tokens in, logits out.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// How the model would go on with a text, piece by piece. The prompt is text: control tokens in it are not seen as such.
    ///
    /// ```no_run
    /// # use lazuli_text::{LanguageModel, Sampling};
    /// # fn main() -> Result<(), lazuli::Error> {
    /// # let model = LanguageModel::open("model.gguf", &lazuli::Device::cpu())?;
    /// let text: String = model.complete("Once upon a time", &Sampling::greedy()).take(20).collect::<Result<_, _>>()?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn complete(&self, prompt: &str, sampling: &Sampling) -> Completion {
        let _caller = fault::caller();
        self.session().complete(prompt, sampling)
    }
}

/// The template that a file has, or the one for files that have none.
fn template_or_default(source: Option<String>, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let has_chatml = ["<|im_start|>", "<|im_end|>"].iter().all(|name| tokenizer.find(name).is_some());
    let default = if has_chatml { CHATML } else { PLAIN };
    ChatTemplate::new(source.unwrap_or_else(|| default.to_string()))
}
