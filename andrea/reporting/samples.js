// What the model wrote as it learned: one text at a time, chosen by a slider.

const showSamples = (samples, onChoose) => {
  const host = document.getElementById("samples");
  if (!host || !samples.length) return;
  const slider = host.querySelector("input"), text = host.querySelector(".sample"), told = host.querySelector(".told");
  const [earlier, later, play] = host.querySelectorAll("button");
  const remembered = recall("sample");
  let timer = 0;

  const show = (index) => {
    const sample = samples[index];
    slider.value = index;
    slider.setAttribute("aria-valuetext", `step ${grouped(sample.step)}`);
    earlier.disabled = index === 0;
    later.disabled = index === samples.length - 1;
    told.replaceChildren();
    make(told, "b", "", `step ${grouped(sample.step)}`);
    if (sample.loss !== null) make(told, "span", "", `training loss ${sample.loss.toFixed(3)}`);
    if (sample.coherence !== null) make(told, "span", "", `coherence ${Math.round(sample.coherence)} of 100`);
    make(told, "span", "", `${index + 1} of ${samples.length}`);
    text.replaceChildren();
    let rest = sample.text;
    if (sample.prompt && rest.startsWith(sample.prompt) && sample.prompt.trim()) {
      make(text, "span", "prompt", sample.prompt);
      rest = rest.slice(sample.prompt.length);
    }
    text.append(text.firstChild ? rest : rest.replace(/^\n+/, ""));
    text.scrollTop = 0;
    // The newest stays the newest after a reload.
    remember("sample", index === samples.length - 1 ? null : sample.step);
    onChoose(index === samples.length - 1 ? null : sample.step);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const go = (by) => {
    stop();
    show(Math.min(Math.max(Number(slider.value) + by, 0), samples.length - 1));
  };
  slider.addEventListener("input", () => go(0));
  earlier.addEventListener("click", () => go(-1));
  later.addEventListener("click", () => go(1));
  play.addEventListener("click", () => {
    if (timer) return stop();
    let index = Number(slider.value) === samples.length - 1 ? 0 : Number(slider.value);
    show(index);
    play.textContent = "Pause";
    timer = setInterval(() => {
      index += 1;
      show(index);
      if (index === samples.length - 1) stop();
    }, Math.max(120, Math.min(900, 12000 / samples.length)));
  });
  host.querySelector(".reel").hidden = samples.length < 2;
  const at = samples.findIndex((sample) => sample.step === remembered);
  show(at < 0 ? samples.length - 1 : at);
  return () => timer !== 0;
};
