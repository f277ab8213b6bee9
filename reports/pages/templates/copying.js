// Copies the text beside a button, and leaves it selected.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    getSelection().selectAllChildren(text);
    const copied = await navigator.clipboard?.writeText(text.textContent).then(() => true, () => false)
      ?? document.execCommand("copy");
    button.textContent = copied ? "copied" : "press Ctrl+C";
  });
}
