/** Whether anybody can see the page: a tab in the background costs nothing for long. */

/** Seconds in the background after which the stream is let go. Who changes tabs back and forth keeps it. */
export const LET_GO_SECONDS = 60

/** The parts of the browser that are used, so that a test can bring its own. */
export interface Sight {
  page: Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'>
  window: Pick<Window, 'addEventListener' | 'removeEventListener'>
}

/** Calls `rest` after a while out of sight and when the page is left, and `wake` when it is seen again. The answer ends it. */
export function whileSeen(rest: () => void, wake: () => void, sight: Sight = { page: document, window }): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined
  let isResting = false
  const stop = (): void => {
    clearTimeout(timer)
    if (!isResting) rest()
    isResting = true
  }
  const look = (): void => {
    clearTimeout(timer)
    if (sight.page.hidden) {
      timer = setTimeout(stop, LET_GO_SECONDS * 1000)
      return
    }
    if (isResting) wake()
    isResting = false
  }
  sight.page.addEventListener('visibilitychange', look)
  // The browser may keep a page that was left and show it again as it was.
  sight.window.addEventListener('pagehide', stop)
  sight.window.addEventListener('pageshow', look)
  look()
  return () => {
    clearTimeout(timer)
    sight.page.removeEventListener('visibilitychange', look)
    sight.window.removeEventListener('pagehide', stop)
    sight.window.removeEventListener('pageshow', look)
  }
}

/** Calls back every so many seconds while the page is in sight, and when it comes back into sight. Returns how to stop. */
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
