/**
 * Copies text. True when it worked. The modern way exists only over HTTPS; a hub inside a lab often has none. `home` is
 * where something may be selected: while a dialog is open, only inside it.
 */
export async function copyText(text: string, home: Element = document.body): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return copyBySelection(text, home)
  }
}

function copyBySelection(text: string, home: Element): boolean {
  const focused = document.activeElement
  const area = document.createElement('textarea')
  area.value = text
  area.className = 'hidden'
  home.append(area)
  area.select()
  const done = document.execCommand('copy')
  area.remove()
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true })
  return done
}
