/** Whether anybody can see the page: a tab in the background costs nothing for long. */

/** Seconds in the background after which the stream is let go. Who changes tabs back and forth keeps it. */
export const DISCONNECT_AFTER_SECONDS = 60

/** The parts of the browser that are used, so that a test can bring its own. */
export interface VisibilitySource {
  page: Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'>
  window: Pick<Window, 'addEventListener' | 'removeEventListener'>
}

/** Calls `rest` after a while out of source and when the page is left, and `wake` when it is seen again. The answer ends it. */
export function watchVisibility(rest: () => void, wake: () => void, source: VisibilitySource = { page: document, window }): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined
  let isResting = false
  const stop = (): void => {
    clearTimeout(timer)
    if (!isResting) rest()
    isResting = true
  }
  const look = (): void => {
    clearTimeout(timer)
    if (source.page.hidden) {
      timer = setTimeout(stop, DISCONNECT_AFTER_SECONDS * 1000)
      return
    }
    if (isResting) wake()
    isResting = false
  }
  source.page.addEventListener('visibilitychange', look)
  // The browser may keep a page that was left and show it again as it was.
  source.window.addEventListener('pagehide', stop)
  source.window.addEventListener('pageshow', look)
  look()
  return () => {
    clearTimeout(timer)
    source.page.removeEventListener('visibilitychange', look)
    source.window.removeEventListener('pagehide', stop)
    source.window.removeEventListener('pageshow', look)
  }
}

/** Calls back every so many seconds while the page is in source, and when it comes back into source. Returns how to stop. */
export function whileVisible(seconds: number, listener: () => void): () => void {
  const onTime = (): void => {
    if (document.visibilityState === 'visible') listener()
  }
  const timer = setInterval(onTime, seconds * 1000)
  document.addEventListener('visibilitychange', onTime)
  return () => {
    clearInterval(timer)
    document.removeEventListener('visibilitychange', onTime)
  }
}
