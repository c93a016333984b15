/* Browsers refuse workers to pages that are opened from disk, and the search runs in one. Here a hidden frame does its
   work: messages in and out are events, and importScripts loads script elements one after the other. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = this.onerror = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><html><body></body></html>")
      inner.document.close()
      inner.postMessage = data => this.tell(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve())
      inner.addEventListener("error", event => this.tell(new ErrorEvent("error", event)))
      this.ready = this.load(new URL(url, document.baseURI).href)
    }

    load(src) {
      const page = this.frame.contentWindow.document
      return new Promise((done, failed) => {
        const script = page.createElement("script")
        Object.assign(script, { src, onload: done, onerror: failed })
        page.body.appendChild(script)
      })
    }

    tell(event) {
      const handler = event.type === "error" ? this.onerror : this.onmessage
      if (handler) handler.call(this, event)
      this.dispatchEvent(event)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker
}
