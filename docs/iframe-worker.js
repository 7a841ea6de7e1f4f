// Browsers start no worker in a page that was opened from a disk: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const early = [];
      this.postMessage = (data) => early.push(data);
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event));
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>postMessage = (data) => frameElement.from(data)</script><script src="${url}"></script>`;
      frame.from = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.onload = () => {
        const inner = frame.contentWindow;
        this.postMessage = (data) => inner.dispatchEvent(new inner.MessageEvent("message", { data }));
        early.forEach(this.postMessage);
      };
      document.body.append(frame);
    }
  };
}
