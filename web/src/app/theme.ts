/** Light, dark, or what the system says. Remembered in the browser; first.ts applies it before the first paint. */

export type Theme = 'system' | 'light' | 'dark'

const KEY = 'gpudeck.theme'
const NEXT: Record<Theme, Theme> = { system: 'light', light: 'dark', dark: 'system' }

export function currentTheme(): Theme {
  const theme = document.documentElement.dataset['theme']
  return theme === 'light' || theme === 'dark' ? theme : 'system'
}

/** Turns to the next theme and returns it. */
export function turnTheme(): Theme {
  const theme = NEXT[currentTheme()]
  if (theme === 'system') delete document.documentElement.dataset['theme']
  else document.documentElement.dataset['theme'] = theme
  remember(theme)
  return theme
}

function remember(theme: Theme): void {
  try {
    if (theme === 'system') localStorage.removeItem(KEY)
    else localStorage.setItem(KEY, theme)
  } catch {
    // Storage may be forbidden: the choice then lasts as long as the page.
  }
}
