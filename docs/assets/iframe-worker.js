// Chromium starts no Worker for a page of file:. Where that is so, a hidden frame runs the worker's script instead, so
// that the search of the site works from a folder. Material finds this class by its name.
(function () {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      // What the script posts goes to whom made the worker, and not to its own frame.
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.deliver = (data) => {
        const event = new inner.MessageEvent("message", { data });
        inner.dispatchEvent(event);
      };
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach(this.deliver);
      };
      frame.contentDocument.body.appendChild(script);
      this.frame = frame;
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.deliver(data);
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
